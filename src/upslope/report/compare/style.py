"""What a comparison's page adds to the style sheet of the reports."""

from upslope.report.compare.measuring import AXES

_LIGHT = ("#2767b0", "#c2571a", "#23804d", "#8a4fb3", "#a3257a", "#8a6d00", "#0e7f8a", "#7b4a36")
_DARK = ("#7fb2ea", "#f2a06b", "#74cb97", "#c79bea", "#f08cc8", "#d9bd4e", "#5fcbd6", "#c99b86")


_DASHES = (
    "none", "9 5", "2 5", "11 5 2 5", "5 4", "14 4 5 4", "11 5 2 5 2 5", "18 6",
    "9 4 9 10", "5 4 2 4", "2 9", "5 10", "14 4 2 4 2 4 2 4", "2 4 2 10", "18 4 2 4", "9 12",
)  # fmt: skip
"""Of a line, by its place: what tells methods apart in grey."""


def _series() -> str:
    rules = []
    for place in range(len(_LIGHT)):
        rules.append(f".s{place} {{ --c: var(--s{place}); }}")
    for place, dashes in enumerate(_DASHES):
        further = ".dashed" if place >= len(_LIGHT) else ""
        rules.append(f".line.s{place % len(_LIGHT)}{further} {{ stroke-dasharray: {dashes}; }}")
    return "\n".join(rules)


def _colours(values: tuple[str, ...]) -> str:
    return " ".join(f"--s{place}: {value};" for place, value in enumerate(values))


def _switch() -> str:
    rules = []
    for axis in AXES:
        rules.append(f"#axis-{axis}:checked ~ .views .by-{axis} {{ display: block; }}")
        rules.append(f"#axis-{axis}:checked ~ .switch label[for=axis-{axis}] {{ background: var(--ink); color: var(--paper); }}")
        rules.append(f"#axis-{axis}:focus-visible ~ .switch label[for=axis-{axis}] {{ outline: 3px solid var(--accent); }}")
    return "\n".join(rules)


STYLE = f"""
:root {{ {_colours(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_colours(_DARK)} }} }}
{_series()}
.line {{ fill: none; stroke: var(--c); stroke-width: 2.4; stroke-linejoin: round; stroke-linecap: round; }}
.dashed.bar {{ stroke-dasharray: 6 4; }}
.band {{ fill: var(--c); opacity: 0.13; }}
.dot {{ fill: var(--c); opacity: 0; }}
.dot:hover {{ opacity: 1; }}
.name {{ fill: var(--c); font-size: 13.5px; font-weight: 600; }}
.value {{ fill: var(--ink); font-size: 13px; font-variant-numeric: tabular-nums; }}
.bar {{ stroke: var(--c); stroke-width: 4; stroke-linecap: round; opacity: 0.55; }}
.point {{ fill: var(--c); stroke: var(--card); stroke-width: 2; }}
.run {{ fill: var(--c); opacity: 0.45; }}
.half {{ stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 4; }}
.verdict {{ background: var(--card); border: 1px solid var(--rule); border-radius: 14px; padding: 22px 26px; margin-top: 26px; }}
.verdict .answer {{ font-size: 27px; line-height: 1.25; font-weight: 650; letter-spacing: -0.01em; margin: 0 0 10px;
  overflow-wrap: anywhere; }}
.about {{ font-weight: 600; overflow-wrap: anywhere; }}
.verdict ul {{ list-style: none; padding: 0; margin: 0; }}
.verdict li {{ padding: 7px 0 7px 26px; position: relative; }}
.verdict li::before {{ position: absolute; left: 2px; font-weight: 700; }}
.verdict li.win::before {{ content: "✓"; color: var(--good); }}
.verdict li.open::before {{ content: "?"; color: var(--soft); }}
.verdict li.stop::before {{ content: "!"; color: var(--bad); }}
.pick {{ position: absolute; opacity: 0; pointer-events: none; }}
.switch {{ display: inline-flex; border: 1px solid var(--rule); border-radius: 9px; margin: 2px 0 12px;
  background: var(--card); }}
.switch label {{ padding: 5px 15px; font-size: 14px; cursor: pointer; border-radius: 8px; }}
.switch label:hover {{ color: var(--accent); }}
.views > * {{ display: none; }}
{_switch()}
.views figure + figure {{ margin-top: 14px; }}
.two {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(330px, 1fr)); gap: 14px; }}
.swatch {{ display: inline-block; width: 36px; height: 10px; margin: 0 6px 0 0; }}
.keys {{ display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 0 0 10px; font-size: 14px; }}
.scroll {{ overflow-x: auto; }}
.scroll table {{ min-width: 560px; }}
td.n, th.n {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.figures th {{ width: auto; }}
.figures tbody th {{ font-weight: 500; }}
.figures thead th {{ color: var(--soft); font-size: 13px; }}
.won {{ color: var(--good); font-weight: 600; }}
section p.note {{ max-width: 110ch; }}
figure + .scroll, .multiples + .scroll {{ margin-top: 14px; }}
h3.spaced {{ margin-top: 26px; color: var(--ink); font-size: 15px; }}
details.close {{ margin-top: 12px; }}
.close summary {{ font-size: 16px; }}
.stack figure + figure {{ margin-top: 14px; }}
@media (max-width: 760px) {{ .stack figure, .views figure, figure.broad {{ overflow-x: auto; }}
  .stack svg, .views svg, .broad svg {{ min-width: 640px; }} }}
"""
