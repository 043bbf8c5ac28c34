"""The report page's style sheet, for the light and the dark."""

STYLE = """
:root { --paper: #fdfcfa; --card: #ffffff; --ink: #1d2126; --soft: #6a717b; --rule: #e6e3dd; --accent: #2f6fb3;
  --point: #c8622b; --good: #2c7a4b; --bad: #b3403a; --tint: #eef4fb; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1c2026; --ink: #e6e8eb; --soft: #98a1ad; --rule: #2e343d;
  --accent: #7fb2ea; --point: #f0a070; --good: #79c796; --bad: #ee8f88; --tint: #1f2b3a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 20px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 44px 0 10px; }
h3 { font-size: 14px; font-weight: 600; color: var(--soft); margin: 0 0 4px; }
p { margin: 6px 0; }
.sub, .note { color: var(--soft); }
.note { font-size: 13px; }
code, pre, .said { font: 13.5px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
a { color: var(--accent); }
figure { margin: 0; }
figure, .tile, article { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tiles { display: grid; grid-template-columns: 2.2fr 1fr 1fr 1fr; gap: 14px; margin-top: 26px; }
.big { font-size: 30px; line-height: 1.2; font-weight: 650; margin: 2px 0; font-variant-numeric: tabular-nums; }
.wide .big { font-size: 42px; }
.up .big { color: var(--good); }
.down .big { color: var(--bad); }
.was, .arrow { color: var(--soft); font-weight: 400; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--rule); stroke-width: 1; }
.break { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 4 3; }
.tick { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.curve, .faint { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
.faint { stroke-width: 1; opacity: 0.4; }
.dot { fill: var(--accent); opacity: 0; }
.dot:hover, .dot.alone { opacity: 1; }
.mark line { stroke: var(--point); stroke-width: 2.5; }
.mark circle { fill: var(--point); stroke: var(--card); stroke-width: 1.5; }
.legend { color: var(--soft); font-size: 14px; }
.key { display: inline-block; margin: 0 7px 0 0; vertical-align: middle; }
.key.line { width: 18px; height: 3px; background: var(--accent); }
.key.point { width: 10px; height: 10px; border-radius: 5px; background: var(--point); margin-left: 22px; }
.multiples { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 14px; }
figcaption { font-size: 14px; margin-bottom: 6px; }
figcaption b + span { float: right; font-variant-numeric: tabular-nums; }
.rollouts { display: grid; grid-template-columns: repeat(auto-fit, minmax(270px, 1fr)); gap: 18px; }
article { margin: 0 0 12px; border-left: 4px solid var(--rule); }
article.good { border-left-color: var(--good); }
article.bad { border-left-color: var(--bad); }
dl { margin: 0 0 8px; display: grid; grid-template-columns: max-content 1fr; gap: 2px 12px; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; }
.said { white-space: pre-wrap; unicode-bidi: isolate; max-height: 16em; overflow: auto; }
.strong { font-weight: 650; }
.bars { color: var(--accent); letter-spacing: 1px; overflow-wrap: anywhere; }
.chip { display: inline-block; font-size: 12.5px; border: 1px solid var(--rule); border-radius: 99px; padding: 1px 9px;
  margin: 2px 6px 2px 0; font-variant-numeric: tabular-nums; }
.chip.good { color: var(--good); border-color: currentColor; }
.chip.bad { color: var(--bad); border-color: currentColor; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; }
th, td { text-align: left; vertical-align: top; padding: 7px 10px; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; width: 12em; }
tr.changed { background: var(--tint); }
tr.changed th { color: var(--accent); }
.formula { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 12px 16px; white-space: pre-wrap; }
details { margin-top: 44px; }
summary { cursor: pointer; font-weight: 600; font-size: 19px; margin-bottom: 10px; }
@media (max-width: 760px) { .tiles { grid-template-columns: 1fr 1fr; } .tile.wide { grid-column: 1 / -1; } }
"""
