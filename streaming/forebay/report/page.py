"""A report as one HTML page that needs nothing else: no script, no font, no file beside it."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from forebay.report.blocks import Block, Bullets, Code, Figure, Section, Table, Text

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --paper: #ffffff; --shade: #f3f5f7; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #9aa4ae; --line: #3a424b;
  --paper: #14181c; --shade: #1f252b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 1.25rem 1rem 3rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; }
td { min-width: 7rem; overflow-wrap: anywhere; }
.number { min-width: 0; overflow-wrap: normal; text-align: right; }
pre { background: var(--shade); padding: .7rem .9rem; border-radius: 6px; overflow-x: auto;
  font-size: .85rem; }
figure { margin: 1.4rem 0; }
figure svg { display: block; width: 100%; min-width: 26rem; max-width: 44rem; height: auto; }
figcaption { color: var(--soft); font-size: .9rem; }
@media print { body { max-width: none; padding: 0; } figure, tr { break-inside: avoid; }
  .wide { overflow: visible; } pre { white-space: pre-wrap; } }
"""


def page(title: str, blocks: Iterable[Block]) -> str:
    """The whole report; figures are part of the page."""
    name = escape(title)
    body = "\n".join(map(_block, blocks))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{name}</h1>\n{body}\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    if isinstance(block, Section):
        return f"<h2>{escape(block.title)}</h2>"
    if isinstance(block, Text):
        return f"<p>{escape(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in block.items)}</ul>"
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Code):
        return f'<pre tabindex="0"><code>{escape(block.code.rstrip())}</code></pre>'
    return _figure(block)


def _table(table: Table) -> str:
    kinds = [' class="number"' if table.is_number(i) else "" for i in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for kind, name in zip(kinds, table.columns, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(_cell(kind, cell) for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in table.rows
    )
    # It can be scrolled where it is wider than the page: by keyboard, too.
    return (
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(kind: str, cell: str) -> str:
    # Where there is little room an interval goes below its number, but stays whole.
    shown = cell.replace(" to ", "\u00a0to\u00a0") if kind else cell
    return f"<td{kind}>{escape(shown)}</td>"


def _figure(figure: Figure) -> str:
    return (
        f'<figure><div class="wide" tabindex="0">{figure.svg}</div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )
