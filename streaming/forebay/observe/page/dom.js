// Makes and changes elements. Text goes in as text, never as HTML: reasons of dead letters and
// names of splits come from whoever wrote the data.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// Changes a text only where it is another one: selections and screen readers are left in peace.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

// Replaces an element's children where what they say has changed.
export function refill(element, children) {
  const made = children.filter((child) => child !== null);
  const same =
    made.length === element.childNodes.length &&
    made.every((child, i) => child.isEqualNode(element.childNodes[i]));
  if (!same) element.replaceChildren(...made);
}

// Lets a table body have one row for each item, and keeps the rows that are there.
export function rows(body, items, make, change) {
  while (body.rows.length > items.length) body.deleteRow(-1);
  items.forEach((item, i) => {
    let row = body.rows[i];
    if (row === undefined) {
      row = make();
      body.append(row);
    }
    change(row, item);
  });
}
