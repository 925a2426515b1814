"""The report's HTML: one self-contained page, no network, light and dark, usable by keyboard.

Every string that comes from data goes through html.escape.
"""

from collections.abc import Sequence
from html import escape

from analysis.looks import ON_DARK

STYLE = """
:root { color-scheme: light dark; --fg:#1c1e21; --muted:#5b6167; --bg:#fcfcfb; --card:#fff; --line:#dcdee0;
  --ink:#3a3a3a; --accent:#0072B2; --warn:#8a4b00; --warnbg:#fff4e2;
  --shade:#0002 }
@media (prefers-color-scheme: dark) { :root { --fg:#e6e7e8; --muted:#a4abb2; --bg:#15171a; --card:#1d2024;
  --line:#34393f; --ink:#cfd3d7; --accent:#6cb6e6; --warn:#ffc982; --warnbg:#33270f;
  --shade:#fff3 } }
* { box-sizing: border-box }
body { margin:0; background:var(--bg); color:var(--fg); font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif }
main { max-width:1120px; margin:0 auto; padding:28px 20px 60px }
h1,h3,p,figcaption { overflow-wrap:anywhere }
h1 { font-size:1.65rem; line-height:1.25; margin:.2em 0 .1em } h2 { font-size:1.15rem; margin:2.2em 0 .6em }
p.sub { color:var(--muted); margin:.1em 0 1.2em } a { color:var(--accent) }
.verdict { background:var(--card); border:1px solid var(--line); border-left:5px solid var(--accent);
  border-radius:8px; padding:14px 20px; margin:14px 0 }
.verdict .outcome { font-weight:650; font-size:1.1rem } .verdict p { margin:.45em 0 }
.note { background:var(--warnbg); color:var(--warn); border-radius:8px; padding:10px 16px; margin:12px 0 }
.figures { display:grid; grid-template-columns:repeat(auto-fit,minmax(min(100%,512px),1fr)); gap:18px }
figure { margin:0; min-width:0; background:var(--card); border:1px solid var(--line); border-radius:8px;
  padding:12px 14px }
figure h3 { margin:0 0 4px; font-size:1rem } figcaption { color:var(--muted); font-size:.84rem; line-height:1.4 }
.plot { overflow-x:auto } .plot::before { content:"\\2194  scroll sideways for the whole figure"; display:none;
  position:sticky; left:0; width:max-content; color:var(--muted); font-size:.8rem }
@media (max-width: 549px) { .plot::before { display:block } }  /* where the svg's least width is more than there is */
svg { display:block; width:100%; min-width:480px; height:auto } svg text { font-family:inherit }
[style*="stroke: #3a3a3a"] { stroke:var(--ink) !important }
[style*="fill: #3a3a3a"] { fill:var(--ink) !important }
svg > * { pointer-events:none }  /* labels and lines to them lie over marks */
svg .mark { cursor:default; pointer-events:auto } svg .mark:hover, svg .mark.at { opacity:.45 }
#tip { position:fixed; z-index:9; max-width:320px; padding:4px 9px; border-radius:6px; background:var(--fg);
  color:var(--bg); font-size:.82rem; pointer-events:none }
:focus-visible { outline:3px solid var(--accent); outline-offset:2px }
/* a shadow at the side to which there is more: the covers scroll along with the content, the shadows do not */
.plot, .scroll { background:linear-gradient(90deg,var(--card) 40%,transparent) 0/44px 100% no-repeat local,
  linear-gradient(270deg,var(--card) 40%,transparent) 100%/44px 100% no-repeat local,
  linear-gradient(90deg,var(--shade),transparent) 0/15px 100% no-repeat scroll,
  linear-gradient(270deg,var(--shade),transparent) 100%/15px 100% no-repeat scroll,var(--card) }
@media (min-width: 550px) { .plot { background:none } }
.scroll { overflow-x:auto; border:1px solid var(--line); border-radius:8px }
table { border-collapse:collapse; width:100%; font-size:.87rem; font-variant-numeric:tabular-nums }
th,td { padding:6px 10px; text-align:right; white-space:nowrap; border-bottom:1px solid var(--line) }
th:first-child,td:first-child { text-align:left } tr:last-child td { border-bottom:0 }
th button { font:inherit; font-weight:600; color:inherit; background:none; border:0; padding:0; cursor:pointer }
th button::after { content:" \\2195"; content:" \\2195" / ""; color:var(--muted) }
th[aria-sort=ascending] button::after { content:" \\2191"; content:" \\2191" / "" }
th[aria-sort=descending] button::after { content:" \\2193"; content:" \\2193" / "" }
dl { display:grid; grid-template-columns:max-content 1fr; gap:2px 16px; font-size:.9rem } dt { color:var(--muted) }
dd { margin:0; overflow-wrap:anywhere } code,pre { font:.88em ui-monospace,Menlo,Consolas,monospace }
pre { background:var(--card); border:1px solid var(--line); border-radius:8px; padding:10px 14px; overflow-x:auto }
"""

LIGHTER = "".join(
    f'[style*="{what}: {colour.lower()}"] {{ {what}:{lighter} !important }}\n'
    for colour, lighter in ON_DARK.items()
    for what in ("stroke", "fill")
)
DARK = f"@media (prefers-color-scheme: dark) {{\n{LIGHTER}}}\n"

# Sorting by any column, numbers by data-value, so that units and separators do not matter; and what a mark says, by
# pointer, by a tap on it or near it (a finger that leaves hides nothing) or, on a focused figure, by the arrow keys.
SCRIPT = """
for (const button of document.querySelectorAll('table.sortable th button')) button.addEventListener('click', () => {
  const head = button.closest('th'), table = head.closest('table');
  const column = [...head.parentNode.children].indexOf(head);
  const up = head.getAttribute('aria-sort') !== 'ascending';
  for (const other of head.parentNode.children) other.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const key = row => { const v = row.children[column].dataset.value, n = Number(v);
    return v === '' ? NaN : isNaN(n) ? v : n; };
  const rows = [...table.tBodies[0].rows].sort((a, b) => { const x = key(a), y = key(b);
    if (x !== x) return 1; if (y !== y) return -1; return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1); });
  table.tBodies[0].append(...rows);
});
const tip = document.getElementById('tip');
const show = (mark, event) => { const box = mark.getBoundingClientRect();
  const line = mark.tagName !== 'use';  // its box is wide: the words stand where it was pointed at
  const [left, top] = line && event ? [event.clientX, event.clientY] : [box.left + box.width / 2, box.top];
  tip.textContent = mark.dataset.tip || mark.querySelector('title').textContent; tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(left, innerWidth - tip.offsetWidth - 8)) + 'px';
  tip.style.top = Math.max(4, top - tip.offsetHeight - 8) + 'px'; };
const places = mark => {  // on the screen: a mark's middle, a line's every third unit of length
  if (mark.tagName === 'use') { const box = mark.getBoundingClientRect();
    return [{x: box.left + box.width / 2, y: box.top + box.height / 2}]; }
  const line = mark.querySelector('path'), onScreen = line.getScreenCTM();
  return Array.from({length: Math.ceil(line.getTotalLength() / 3) + 1},
    (_, step) => line.getPointAtLength(3 * step).matrixTransform(onScreen)); };
const near = (marks, event) => { let found = null, least = 20;  // pixels, for a finger
  for (const mark of marks) for (const {x, y} of places(mark)) {
    const away = Math.hypot(x - event.clientX, y - event.clientY);
    if (away < least) { least = away; found = mark; } }
  return found; };
document.addEventListener('pointerdown', () => { tip.hidden = true; });
for (const svg of document.querySelectorAll('figure svg')) {
  const marks = [...svg.querySelectorAll('.mark')]; let at = -1;
  const leave = () => { if (at >= 0) marks[at].classList.remove('at'); tip.hidden = true; };
  svg.addEventListener('pointerover', event => { const mark = event.target.closest('.mark');
    if (mark) show(mark, event); else tip.hidden = true; });
  svg.addEventListener('pointerleave', event => { if (event.pointerType !== 'touch') leave(); });
  svg.addEventListener('click', event => { const mark = near(marks, event); if (mark) show(mark, event); });
  svg.addEventListener('blur', () => { leave(); at = -1; });
  svg.addEventListener('keydown', event => { const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (event.key === 'Escape') leave();
    if (!step || !marks.length) return;
    event.preventDefault(); leave(); at = (at + step + marks.length) % marks.length;
    marks[at].classList.add('at'); marks[at].scrollIntoView({block: 'nearest', inline: 'nearest'});
    show(marks[at]); });
}
"""


def page(title: str, body: str) -> str:
    """A whole document."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{DARK}</style></head>\n"
        f'<body><main>\n{body}\n</main><div id="tip" role="status" hidden></div>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def heading(text: str) -> str:
    """A section's heading."""
    return f"<h2>{escape(text)}</h2>"


def note(text: str) -> str:
    """Something that the reader should not miss."""
    return f'<p class="note" role="note">{escape(text)}</p>'


def figure(title: str, svg: str, caption: str) -> str:
    """A figure with its caption, in a frame that scrolls where the page is too narrow for its text to be read."""
    frame = f'<div class="plot">{svg}</div>'
    return f"<figure><h3>{escape(title)}</h3>{frame}<figcaption>{escape(caption)}</figcaption></figure>"


Cell = tuple[str, object]  # what is shown, what is sorted by


def table(headers: Sequence[str], rows: Sequence[Sequence[Cell]], links: Sequence[str | None] = ()) -> str:
    """A sortable table.

    Args:
        links: where the first cell of each row leads; None for nowhere.
    """
    head = "".join(f'<th scope="col"><button type="button">{escape(header)}</button></th>' for header in headers)
    body = []
    for number, row in enumerate(rows):
        cells = []
        for column, (shown, value) in enumerate(row):
            text = escape(shown)
            link = links[number] if column == 0 and links else None
            if link:
                text = f'<a href="{escape(link, quote=True)}">{text}</a>'
            key = "" if value is None or value != value else value
            cells.append(f'<td data-value="{escape(str(key), quote=True)}">{text}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0"><table class="sortable"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def definitions(items: Sequence[tuple[str, str]]) -> str:
    """Names and values."""
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in items) + "</dl>"


def paragraph(text: str, css: str = "") -> str:
    """A paragraph."""
    attribute = f' class="{css}"' if css else ""
    return f"<p{attribute}>{escape(text)}</p>"


def preformatted(text: str) -> str:
    """Commands, citations."""
    return f"<pre>{escape(text)}</pre>"
