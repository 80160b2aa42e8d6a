// The Marey timeline: ranks against time. `marey_draw.js` draws it; this file has its rows, its zoom and its ways in.
const marey = { chart: null, collapsed: new Set(), focus: null, rows: [], read: null };

function timelineView(body) {
  const data = timeline();
  if (!(data.begin < data.end)) {
    body.append(emptyView('The trace has no events with start and length, so there is nothing to draw against time.'));
    return;
  }
  marey.rows = mareyRows();
  const height = () => Math.max(150, Math.min(640, marey.rows.length * 46)) + 54;
  marey.chart = chart({
    label: 'Marey timeline: ranks from top to bottom, time from left to right', height: height(),
    margin: { l: 128, t: 26, r: 12, b: 28 }, brush: 'xy',
    extent: () => ({ x0: data.begin, x1: data.end, y0: 0, y1: marey.rows.length }), origin: timeOrigin,
    draw: (self) => drawMarey(self, marey, data),
    zoomed: describe,
    hover: (px, py, self) => mareyHover(px, py, self, data),
    click(px, py, self) {
      const row = mareyRowAt(py, self);
      if (row && px < self.plot.x) location.hash = `#rank-${doc.ranks[row.ranks[0]].rank}`;
    },
  });
  marey.read = h('p', { class: 'read', 'aria-live': 'polite' });
  function describe(self) {
    const { view } = self;
    marey.read.textContent = self.zoom
      ? `Shown: ${seconds(view.x0)} to ${seconds(view.x1)} (${msUnit(Math.round(view.x1 - view.x0))}), ${view.y1 - view.y0} of ${marey.rows.length} lines.`
      : `Shown: everything, ${seconds(view.x0)} to ${seconds(view.x1)}.`;
    if (view.y1 - view.y0 > self.plot.h) marey.read.textContent += ' Each line is the slowest of several ranks: select ranks by dragging down.';
  }
  const { slowest_rank: slowest, fastest_rank: fastest } = doc.summary;
  const goto = h('input', { type: 'text', inputmode: 'numeric', 'aria-label': 'Number of a rank' });
  const tools = h('div', { class: 'tools' },
    slowest !== null && h('button', { type: 'button', onclick: () => showRank(slowest) }, `Slowest rank (${slowest})`),
    fastest !== null && h('button', { type: 'button', onclick: () => showRank(fastest) }, `Fastest rank (${fastest})`),
    h('label', null, 'Rank', goto),
    h('button', { type: 'button', onclick: () => rankRow.has(Number(goto.value)) && showRank(Number(goto.value)) }, 'Show'),
    doc.steps.length > 0 && choice('Step', [['', 'all'], ...doc.steps.map((step) => [String(step), String(step)])],
      (step) => (step === '' ? marey.chart.setZoom(null) : showStep(Number(step)))),
    h('button', { type: 'button', onclick: () => marey.chart.changeZoom(0.5, 0) }, 'Zoom in'),
    h('button', { type: 'button', onclick: () => marey.chart.changeZoom(2, 0) }, 'Zoom out'),
    h('button', { type: 'button', onclick: () => marey.chart.setZoom(null) }, 'Everything'));
  body.append(tools, stageButtons(height), legend(KINDS), marey.chart.element, marey.read);
  body.append(note('Drag across the chart to zoom (also down, to select ranks), double click or Escape resets, Shift and the wheel zoom. '
    + 'A polygon connects the same operation of two neighbouring ranks of a stage. The boxes beside a rank are FLOPs, FLOPS (both of the largest '
    + 'rank) and peak memory (of the capacity); the light line is memory in use, the dark line the FLOPs of single operations (of the rank\'s largest). Dotted lines begin steps; red lines are incidents.'));
  if (data.leftOut > 0) body.append(note(`${data.leftOut} spans, the shortest, are not in this report because of its size limit.`));
  marey.chart.draw();
  describe(marey.chart);
}

// Rows from top to bottom: one per rank, or one per collapsed stage.
function mareyRows() {
  const rows = [];
  for (const row of rankOrder) {
    const stage = stageOf(row);
    const last = rows[rows.length - 1];
    if (!marey.collapsed.has(stage)) rows.push({ ranks: [row], stage, label: `rank ${doc.ranks[row].rank}` });
    else if (last?.whole && last.stage === stage) last.ranks.push(row);
    else rows.push({ ranks: [row], stage, label: `stage ${plain(stage)}`, whole: true });
  }
  return rows;
}
function stageButtons(height) {
  const stages = [...new Set(rankOrder.map(stageOf))];
  const rebuild = () => {
    marey.rows = mareyRows();
    marey.chart.zoom = marey.chart.zoom && { ...marey.chart.zoom, y0: 0, y1: marey.rows.length };
    marey.chart.setHeight(height());
  };
  const button = (text, toggle, pressed) => h('button', { type: 'button', 'aria-expanded': String(pressed), onclick: (event) => {
    toggle();
    rebuild();
    for (const other of event.target.parentNode.children) {
      if (other.stage !== undefined) other.setAttribute('aria-expanded', String(!marey.collapsed.has(other.stage)));
    }
  } }, text);
  const each = stages.map((stage) => {
    const toggle = button(stage === null || stage === undefined ? 'All ranks' : `Stage ${stage}`, () => {
      if (!marey.collapsed.delete(stage)) marey.collapsed.add(stage);
    }, !marey.collapsed.has(stage));
    toggle.stage = stage;
    return toggle;
  });
  const all = [button('Collapse all stages', () => stages.forEach((stage) => marey.collapsed.add(stage)), true),
    button('Expand all', () => marey.collapsed.clear(), true)];
  all.forEach((one) => one.removeAttribute('aria-expanded'));
  return h('div', { class: 'stages screen', role: 'group', 'aria-label': 'Stages: expanded or collapsed to one line' },
    ...(stages.length > 1 ? all : []), ...each);
}
const NEIGHBOURS = 6; // ranks on each side of the rank that the timeline was opened for
function rowsAround(rank) {
  if (rank !== null) marey.collapsed.delete(stageOf(rankRow.get(rank)));
  marey.rows = mareyRows();
  const index = marey.rows.findIndex((row) => rank !== null && row.ranks.includes(rankRow.get(rank)));
  if (index < 0 || marey.rows.length <= 3 * NEIGHBOURS) return [0, marey.rows.length];
  const from = Math.max(0, Math.min(index - NEIGHBOURS, marey.rows.length - 2 * NEIGHBOURS - 1));
  return [from, from + 2 * NEIGHBOURS + 1];
}
// Shows a rank and its neighbours, over three steps if a step is known.
function showRank(rank, step) {
  marey.focus = rank;
  const [y0, y1] = rowsAround(rank);
  const data = timeline();
  const windows = [step - 1, step, step + 1].filter((at) => stepColumn.has(at)).map(stepWindow).filter(Boolean);
  const [x0, x1] = windows.length ? [windows[0][0], windows[windows.length - 1][1]]
    : marey.chart.zoom ? [marey.chart.zoom.x0, marey.chart.zoom.x1] : [data.begin, data.end];
  marey.chart.setZoom({ x0, x1, y0, y1 });
}
function showStep(step) {
  const window = stepWindow(step);
  if (!window) return;
  const margin = (window[1] - window[0]) * 0.02;
  const [y0, y1] = marey.chart.zoom ? [marey.chart.zoom.y0, marey.chart.zoom.y1] : [0, marey.rows.length];
  marey.chart.setZoom({ x0: window[0] - margin, x1: window[1] + margin, y0, y1 });
}
// Follows `#timeline/rank-7/step-41`.
function timelineRoute(parts) {
  if (!marey.chart) return;
  const number = (prefix) => {
    const part = parts.find((part) => part.startsWith(prefix));
    return part === undefined ? null : Number(part.slice(prefix.length));
  };
  const [rank, step] = [number('rank-'), number('step-')];
  if (rank !== null && rankRow.has(rank)) showRank(rank, step ?? undefined);
  else if (step !== null && stepColumn.has(step)) showStep(step);
}

function mareyRowAt(py, self) {
  const index = Math.floor(self.unY(py));
  return py >= self.plot.y && py <= self.plot.y + self.plot.h ? marey.rows[index] : undefined;
}
function mareyHover(px, py, self, data) {
  const row = mareyRowAt(py, self);
  if (!row) return null;
  const at = self.unX(px);
  if (px < self.plot.x) {
    const info = doc.ranks[row.ranks[0]];
    return row.whole ? `${row.label}: ${row.ranks.length} ranks` : [rankName(row.ranks[0]), `FLOPs per step: ${flop(info.flop_per_step)}`,
      `FLOPS: ${flops(info.flop_per_second)}`, `peak memory: ${bytes(info.peak_memory_bytes)} of ${bytes(info.memory_capacity_bytes)}`,
      'click: page of the rank'].join('\n');
  }
  self.overlay((ctx) => {
    ctx.strokeStyle = self.palette.quiet;
    ctx.beginPath();
    ctx.moveTo(px, self.plot.y);
    ctx.lineTo(px, self.plot.y + self.plot.h);
    ctx.stroke();
  });
  const slack = (self.view.x1 - self.view.x0) / self.plot.w;
  const lines = [];
  for (const rank of row.ranks.slice(0, 4)) {
    const columns = data.ranks[rank];
    const found = [];
    for (let i = firstSpan(columns, at - slack); i < columns.count && columns.start[i] <= at + slack; i += 1) {
      if (columns.start[i] + columns.length[i] >= at - slack) found.push(i);
    }
    found.sort((a, b) => columns.length[a] - columns.length[b]);
    lines.push(`${rankName(rank)} at ${seconds(Math.round(at))}`, ...found.slice(0, 4).map((i) =>
      `${kindName(columns.kind[i])} ${data.names[columns.name[i]] ?? ''}: ${msUnit(columns.length[i])}, `
      + `${seconds(columns.start[i])} to ${seconds(columns.start[i] + columns.length[i])}`));
    if (found.length > 4) lines.push(`and ${found.length - 4} more`);
  }
  const incident = doc.incidents.find((one) => Math.abs(self.x(one.at_us) - px) < 4);
  if (incident) lines.push(`incident: ${incident.sentence}`);
  return lines.join('\n');
}
