// Pipeline stages, and the sends and receives between them: sends red, receives green, a line from each send to its receive.
const SEND = '#d64545';
const RECEIVE = '#2f9e5b';
const PAIRS_DRAWN = 6000; // pairs in the window up to which their lines are drawn

function pipelineView(body) {
  const { stages, pairs, unpaired, micro_batches: microBatches } = doc.pipeline;
  if (stages.length > 0) {
    body.append(plainTable('Pipeline stages', [['Stage', true], ['Ranks'], ['Stage time per step (ms)', true], ['Bubble per step (ms)', true]],
      stages.map((stage) => [String(stage.stage), rankRanges(stage.ranks), ms(stage.stage_us), ms(stage.bubble_us)])));
  }
  if (stages.length < 2) body.append(note('The job has one pipeline stage: no rank sends activations to another stage.'));
  if (pairs.length === 0) {
    body.append(emptyView(`No send was found with its receive${unpaired ? `; ${unpaired} sends or receives lack their other side` : ''}.`));
    return;
  }
  if (microBatches !== null) body.append(note(`${microBatches} micro-batches per step.`));
  if (doc.pipeline.pairs_left_out > 0) body.append(note(`${doc.pipeline.pairs_left_out} pairs are not in this report because of its size limit: evenly spaced steps have theirs.`));
  if (unpaired > 0) body.append(note(`${unpaired} sends or receives lack their other side and are not drawn.`));
  const taking = new Set(pairs.flatMap((pair) => [pair.source, pair.destination]));
  const lanes = rankOrder.filter((row) => taking.has(doc.ranks[row].rank));
  const laneOf = new Map(lanes.map((row, lane) => [doc.ranks[row].rank, lane]));
  const sorted = [...pairs].sort((a, b) => a.send[0] - b.send[0]);
  const end = (pair) => Math.max(pair.send[0] + pair.send[1], pair.receive[0] + pair.receive[1]);
  const whole = { x0: Math.min(sorted[0].send[0], ...firstMoments(sorted)), x1: sorted.reduce((last, pair) => Math.max(last, end(pair)), -Infinity), y0: 0, y1: lanes.length };
  const inWindow = (self) => sorted.filter((pair) => end(pair) >= self.view.x0 && Math.min(pair.send[0], pair.receive[0]) <= self.view.x1
    && Math.max(laneOf.get(pair.source), laneOf.get(pair.destination)) >= self.view.y0 && Math.min(laneOf.get(pair.source), laneOf.get(pair.destination)) < self.view.y1);
  const read = h('p', { class: 'read', 'aria-live': 'polite' });
  const view = chart({
    label: 'Pipeline: sends and receives of each rank', height: Math.max(140, Math.min(560, lanes.length * 40)) + 44, margin: { l: 116, b: 28 }, brush: 'xy',
    extent: () => whole, origin: timeOrigin,
    draw(self) {
      const { ctx, plot, palette } = self;
      const visible = inWindow(self);
      const pitch = plot.h / (self.view.y1 - self.view.y0);
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, 0, self.width, self.height);
      const every = Math.max(1, Math.ceil(13 / pitch));
      for (let lane = Math.floor(self.view.y0); lane < self.view.y1; lane += 1) {
        const row = lanes[lane];
        if (lane > 0 && stageOf(row) !== stageOf(lanes[lane - 1])) {
          ctx.fillStyle = palette.line;
          ctx.fillRect(0, self.y(lane), self.width, 1);
        }
        if (lane % every !== 0) continue;
        ctx.fillStyle = blamedRanks.has(doc.ranks[row].rank) ? palette.bad : palette.ink;
        ctx.textAlign = 'right';
        ctx.fillText(hasStages ? `stage ${plain(stageOf(row))}, rank ${doc.ranks[row].rank}` : `rank ${doc.ranks[row].rank}`, plot.x - 8, self.y(lane + 0.5));
      }
      ctx.save();
      ctx.beginPath();
      ctx.rect(plot.x, plot.y, plot.w, plot.h);
      ctx.clip();
      const bar = Math.max(1, Math.min(14, pitch * 0.4));
      const rects = (colour, side, rank) => {
        ctx.fillStyle = colour;
        for (const pair of visible) {
          const [start, length] = pair[side];
          ctx.fillRect(self.x(start), self.y(laneOf.get(pair[rank]) + 0.5) - bar / 2, Math.max(1, length * plot.w / (self.view.x1 - self.view.x0)), bar);
        }
      };
      ctx.globalAlpha = 0.85;
      rects(RECEIVE, 'receive', 'destination');
      rects(SEND, 'send', 'source');
      ctx.globalAlpha = visible.length > 400 ? 0.35 : 0.8;
      if (visible.length <= PAIRS_DRAWN && pitch >= 5) {
        ctx.strokeStyle = palette.quiet;
        ctx.beginPath();
        for (const pair of visible) {
          ctx.moveTo(self.x(pair.send[0]), self.y(laneOf.get(pair.source) + 0.5));
          ctx.lineTo(self.x(pair.receive[0] + pair.receive[1]), self.y(laneOf.get(pair.destination) + 0.5));
        }
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.restore();
      timeAxis(self);
      read.textContent = visible.length > PAIRS_DRAWN || pitch < 5
        ? `${visible.length} pairs: zoom in for the lines between sends and receives.` : `${visible.length} pairs.`;
    },
    hover(px, py, self) {
      const [at, lane] = [self.unX(px), Math.floor(self.unY(py))];
      const slack = 2 * (self.view.x1 - self.view.x0) / self.plot.w;
      const covers = ([start, length]) => start - slack <= at && at <= start + length + slack;
      const found = sorted.filter((pair) => laneOf.get(pair.source) === lane && covers(pair.send) || laneOf.get(pair.destination) === lane && covers(pair.receive));
      if (found.length === 0) return null;
      return found.slice(0, 3).map((pair) => [`${pair.source} → ${pair.destination}${pair.step === null ? '' : `, step ${pair.step}`}${pair.bytes ? `, ${bytes(pair.bytes)}` : ''}`,
        `send ${msUnit(pair.send[1])} at ${seconds(pair.send[0])}`, `receive ${msUnit(pair.receive[1])} at ${seconds(pair.receive[0])}`].join('\n')).join('\n')
        + (found.length > 3 ? `\nand ${found.length - 3} more` : '');
    },
  });
  body.append(h('div', { class: 'tools' }, doc.steps.length > 0 && choice('Step', [['', 'all'], ...doc.steps.map((step) => [String(step), String(step)])], (step) => {
    const window = step === '' ? null : stepWindow(Number(step));
    view.setZoom(window && { x0: window[0], x1: window[1], y0: 0, y1: lanes.length });
  }), h('button', { type: 'button', onclick: () => view.setZoom(null) }, 'Everything')),
  legend([['send', SEND], ['receive', RECEIVE], ['from a send to its receive', 'var(--quiet)']]), view.element, read);
  view.draw();
}
const firstMoments = (pairs) => [pairs.reduce((first, pair) => Math.min(first, pair.receive[0]), Infinity)];
// Numbers as ranges: 0-3, 8.
function rankRanges(ranks) {
  const parts = [];
  for (const rank of [...ranks].sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && last[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([from, to]) => (from === to ? String(from) : `${from}–${to}`)).join(', ');
}
