// The splits as a table that can be sorted, filtered and cut; usable with thousands of them.

import { byId, el, mark, refill, rows, say } from "./dom.js";
import { count, seconds, UNKNOWN } from "./format.js";
import { rankName } from "./ranks.js";

const STATES = ["STALLED", "STOPPED", "BEHIND", "OK"];
const STATE_WORDS = {
  OK: "keeps up, or catches up",
  BEHIND: "moves, but its lag does not shrink",
  STALLED: "others move, this one does not, though there is more",
  STOPPED: "the trainer takes nothing, or reading ended",
};
const COLUMNS = [
  { key: "name", name: "Split", text: (s) => s.name },
  { key: "rank", name: "Rank", text: (s) => rankName(shown, s.rank) },
  { key: "state", name: "State", text: (s) => s.state ?? UNKNOWN },
  { key: "lag_records", name: "Lag", figure: true, text: (s) => count(s.lag_records) },
  { key: "lag_seconds", name: "Behind", figure: true, text: (s) => seconds(s.lag_seconds) },
  { key: "unsaved", name: "Unsaved", figure: true, text: (s) => count(s.unsaved) },
  { key: "position", name: "Position", figure: true, text: (s) => count(s.position) },
  { key: "end", name: "End", figure: true, text: (s) => count(s.end) },
];
const NAME = COLUMNS[0];
const wanted = { sort: "lag_records", down: true, filter: "", state: null, most: 20 };
let shown = { splits: [], ranks: [], split_count: 0, split_states: {} };
let buttons = [];

export function setUpSplits() {
  refill(byId("splits-head"), COLUMNS.map(header));
  buttons = [...byId("splits-head").querySelectorAll("button")];
  byId("split-filter").addEventListener("input", (event) => {
    wanted.filter = event.target.value.trim().toLowerCase();
    draw();
  });
  byId("split-most").addEventListener("change", (event) => {
    wanted.most = Number(event.target.value);
    draw();
  });
  byId("split-states").append(...STATES.map(chip));
}

export function showSplits(picture) {
  shown = picture;
  draw();
}

function header(column) {
  const button = el("button", { type: "button" }, column.name);
  button.addEventListener("click", () => {
    wanted.down = wanted.sort === column.key ? !wanted.down : column.figure === true;
    wanted.sort = column.key;
    draw();
  });
  return el("th", { scope: "col", class: column.figure ? "figure" : null, "data-column": column.key }, button);
}

function chip(state) {
  const button = el("button", { type: "button", class: "chip", "data-state": state, "aria-pressed": "false", title: STATE_WORDS[state] }, state);
  button.addEventListener("click", () => {
    wanted.state = wanted.state === state ? null : state;
    draw();
  });
  return button;
}

function draw() {
  const several = shown.ranks.length > 1;
  mark(byId("splits"), "data-one-rank", !several && "");
  buttons.forEach((button, i) => {
    const sorted = COLUMNS[i].key === wanted.sort;
    mark(button.parentElement, "aria-sort", sorted && (wanted.down ? "descending" : "ascending"));
  });
  for (const button of byId("split-states").children) {
    const state = button.dataset.state;
    say(button, `${state} ${count(shown.split_states[state] ?? 0)}`);
    mark(button, "aria-pressed", String(wanted.state === state));
  }
  const fitting = shown.splits.filter(fits).sort(compared);
  const cut = fitting.slice(0, wanted.most);
  rows(byId("splits-body"), cut, makeRow, changeRow);
  const of = shown.split_count > shown.splits.length ? ` (${count(shown.splits.length)} furthest behind listed)` : "";
  say(byId("split-count"), `${count(cut.length)} of ${count(shown.split_count)} splits${of}`);
}

function fits(split) {
  if (wanted.state !== null && split.state !== wanted.state) return false;
  return split.name.toLowerCase().includes(wanted.filter);
}

function compared(a, b) {
  const order = wanted.sort === "state" ? stateOrder(a, b) : plainOrder(a[wanted.sort], b[wanted.sort]);
  return order || NAME_ORDER.compare(a.name, b.name);
}

const NAME_ORDER = new Intl.Collator("en", { numeric: true });

function stateOrder(a, b) {
  const order = STATES.indexOf(a.state) - STATES.indexOf(b.state);
  return wanted.down ? -order : order;
}

// What is not known comes last, whichever way it is sorted.
function plainOrder(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  const order = typeof a === "string" ? NAME_ORDER.compare(a, b) : a - b;
  return wanted.down ? -order : order;
}

function makeRow() {
  const row = el("tr");
  for (const column of COLUMNS) {
    const cell = column === NAME
      ? el("th", { scope: "row" })
      : el("td", { class: column.figure ? "figure" : null, "data-column": column.key });
    row.append(cell);
  }
  return row;
}

function changeRow(row, split) {
  COLUMNS.forEach((column, i) => say(row.cells[i], column.text(split)));
  mark(row, "data-state", split.state);
}
