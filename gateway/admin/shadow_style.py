"""How a shadow report looks, by day and by night."""

STYLE = """
:root { color-scheme: light dark;
  --ink: light-dark(#1c2430, #e6e9ee); --soft: light-dark(#5b6675, #9aa5b4); --line: light-dark(#d9dee5, #333c48);
  --ground: light-dark(#fbfcfd, #12161c); --panel: light-dark(#ffffff, #1a2029);
  --one: light-dark(#2563a8, #6ba5e7); --other: light-dark(#c2641d, #eb9c5c);
  --good: light-dark(#2e7d4f, #58b983); --bad: light-dark(#c98a04, #e5b63f); --worse: light-dark(#b3372f, #e8746b);
  --odd: light-dark(#7a5aa6, #b194dd); --none: light-dark(#8c96a3, #6b7684); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 24px 16px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 small, dt, figcaption { color: var(--soft); font-weight: normal; font-size: 13px; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 16px;
  margin-top: 16px; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 16px 0; }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 8px 16px; }
dd { margin: 0; font-size: 20px; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font: 14px system-ui, sans-serif; }
svg .axis { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; padding: 0; margin: 8px 0 0; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.one { fill: var(--one); } .other { fill: var(--other); }
.good { fill: var(--good); background: var(--good); } .bad { fill: var(--bad); background: var(--bad); }
.worse { fill: var(--worse); background: var(--worse); } .odd { fill: var(--odd); background: var(--odd); }
.none { fill: var(--none); background: var(--none); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 16px; }
figure { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: 8px 0; }
th, td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 500; color: var(--soft); } th:first-child, .texts th, .texts td { text-align: left; }
td, th:first-child { white-space: nowrap; } .texts td { white-space: normal; }
pre { margin: 4px 0; padding: 6px 8px; background: var(--ground); border-radius: 4px; white-space: pre-wrap;
  overflow-wrap: anywhere; max-width: 60ch; font-size: 12px; }
"""
