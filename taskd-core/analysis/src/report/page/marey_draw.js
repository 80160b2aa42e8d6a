// Drawing of the Marey timeline with a level of detail: polygons while lines are apart and few; otherwise one band of pixels
// per rank, and with more ranks than pixels the slowest rank of each pixel.
const POLYGONS_MAX = 30000; // spans in the window up to which polygons are drawn
const POLYGON_PITCH = 13; // pixels between two lines from which polygons are drawn
// Later passes cover earlier ones: pauses of the host, then communication, then computation.
const PASSES = [[4, 5, 6, 7], [1, 2, 3], [0]];
const PASS_OF = KINDS.map((_, kind) => PASSES.findIndex((pass) => pass.includes(kind)));

function drawMarey(self, state, data) {
  const { ctx, plot, palette, view } = self;
  ctx.fillStyle = palette.paper;
  ctx.fillRect(0, 0, self.width, self.height);
  const first = Math.max(0, Math.floor(view.y0));
  const last = Math.min(state.rows.length, Math.ceil(view.y1));
  const pitch = plot.h / (view.y1 - view.y0);
  markFocus(self, state, pitch);
  let spans = 0;
  for (let i = first; i < last; i += 1) {
    for (const rank of state.rows[i].ranks) {
      spans += firstSpan(data.ranks[rank], view.x1 + data.ranks[rank].longest) - firstSpan(data.ranks[rank], view.x0);
    }
  }
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.x, plot.y, plot.w, plot.h);
  ctx.clip();
  const detailed = pitch >= POLYGON_PITCH && spans <= POLYGONS_MAX;
  if (detailed) drawPolygons(self, state, data, first, last, pitch);
  else drawBands(self, state, data, first, last, pitch);
  drawMoments(self, detailed);
  self.lines = 0;
  if (pitch >= POLYGON_PITCH) for (let i = first; i < last; i += 1) drawLines(self, state.rows[i], i, pitch, data);
  ctx.restore();
  drawLabels(self, state, first, last, pitch);
  timeAxis(self);
  self.element.dataset.detail = detailed ? 'polygons' : 'bands';
  self.element.dataset.spans = String(spans);
  self.element.dataset.lines = String(self.lines);
}

function markFocus(self, state, pitch) {
  const index = state.rows.findIndex((row) => state.focus !== null && row.ranks.includes(rankRow.get(state.focus)));
  if (index < self.view.y0 || index >= self.view.y1) return;
  self.ctx.fillStyle = self.palette.mark;
  self.ctx.fillRect(0, self.y(index), self.width, pitch);
}

// Runs of spans of one kind: neighbours that are both narrower than 1 % of the window and touch are one run.
function runs(columns, self, kinds, emit) {
  const { view, plot } = self;
  const narrow = (view.x1 - view.x0) / 100;
  const gap = (view.x1 - view.x0) / plot.w;
  let run = null;
  for (let i = firstSpan(columns, view.x0); i < columns.count && columns.start[i] <= view.x1; i += 1) {
    const kind = columns.kind[i];
    const end = columns.start[i] + columns.length[i];
    if (end < view.x0 || !kinds.includes(kind)) continue;
    const short = columns.length[i] < narrow;
    if (run && run.kind === kind && run.short && short && columns.start[i] - run.end <= gap) {
      run.end = Math.max(run.end, end);
    } else {
      if (run) emit(run);
      run = { kind, short, start: columns.start[i], end };
    }
  }
  if (run) emit(run);
}

function drawPolygons(self, state, data, first, last, pitch) {
  const { ctx } = self;
  const bar = Math.max(3, Math.min(12, pitch * 0.28));
  const middle = (i) => self.y(i + 0.5);
  for (const pass of PASSES) {
    ctx.globalAlpha = 0.42;
    for (let i = first; i + 1 < last; i += 1) {
      const [a, b] = [state.rows[i], state.rows[i + 1]];
      if (a.whole || b.whole || a.stage !== b.stage) continue;
      connect(self, data, data.ranks[a.ranks[0]], data.ranks[b.ranks[0]], pass, middle(i) + bar / 2, middle(i + 1) - bar / 2);
    }
    ctx.globalAlpha = 1;
    for (let i = first; i < last; i += 1) {
      const { whole, ranks } = state.rows[i];
      const communicates = pass.includes(1);
      for (const rank of ranks) {
        runs(data.ranks[rank], self, pass, (run) => {
          ctx.fillStyle = kindColour(run.kind);
          const width = Math.max(0.6, self.x(run.end) - self.x(run.start));
          // Communication is in the lower half, so that computation at the same time remains visible.
          const top = communicates && !whole ? middle(i) : middle(i) - bar / 2;
          ctx.fillRect(self.x(run.start), top, width, communicates && !whole ? bar / 2 : bar);
        });
      }
    }
  }
}
// Polygons between the operations that two ranks share, by their match numbers; narrow neighbours of one kind are merged.
function connect(self, data, upper, lower, kinds, top, bottom) {
  const { ctx, view, plot } = self;
  const partner = new Map();
  for (let i = firstSpan(lower, view.x0 - lower.longest); i < lower.count && lower.start[i] <= view.x1 + lower.longest; i += 1) {
    if (lower.match[i] !== 0 && kinds.includes(lower.kind[i])) partner.set(lower.match[i], i);
  }
  const gap = (view.x1 - view.x0) / plot.w;
  const narrow = (view.x1 - view.x0) / 100;
  let shape = null;
  const flush = () => {
    if (!shape) return;
    const [a, b, c, d] = [self.x(shape.a), self.x(shape.b), self.x(shape.c), self.x(shape.d)];
    ctx.fillStyle = kindColour(shape.kind);
    ctx.beginPath();
    ctx.moveTo(a, top);
    ctx.lineTo(Math.max(b, a + 0.6), top);
    ctx.lineTo(Math.max(d, c + 0.6), bottom);
    ctx.lineTo(c, bottom);
    ctx.fill();
  };
  for (let i = firstSpan(upper, view.x0 - upper.longest); i < upper.count && upper.start[i] <= view.x1 + upper.longest; i += 1) {
    if (upper.match[i] === 0 || !kinds.includes(upper.kind[i])) continue;
    const j = partner.get(upper.match[i]);
    if (j === undefined) continue;
    const [a, b, c, d] = [upper.start[i], upper.start[i] + upper.length[i], lower.start[j], lower.start[j] + lower.length[j]];
    if (Math.max(b, d) < view.x0 || Math.min(a, c) > view.x1) continue;
    const short = b - a < narrow && d - c < narrow;
    if (shape && shape.kind === upper.kind[i] && shape.short && short && a - shape.b <= gap && c - shape.d <= gap && c >= shape.c) {
      shape.b = Math.max(shape.b, b);
      shape.d = Math.max(shape.d, d);
    } else {
      flush();
      shape = { kind: upper.kind[i], short, a, b, c, d };
    }
  }
  flush();
}

// One line of pixels per rank, painted into an image. Of the spans within one pixel the longest gives the colour.
function drawBands(self, state, data, first, last, pitch) {
  const { ctx, plot, view } = self;
  const width = Math.round(plot.w);
  const lines = Math.max(1, Math.min(last - first, Math.round(plot.h)));
  const image = new ImageData(width, lines);
  const pixels = new Uint32Array(image.data.buffer);
  const scale = width / (view.x1 - view.x0);
  const longest = new Float32Array(width);
  for (let line = 0; line < lines; line += 1) {
    const from = first + Math.floor(line * (last - first) / lines);
    const to = Math.max(from + 1, first + Math.floor((line + 1) * (last - first) / lines));
    const row = slowestOf(state.rows, from, to);
    PASSES.forEach((_, pass) => {
      longest.fill(0);
      for (const rank of row.ranks) paint(data.ranks[rank], pass, line * width);
    });
  }
  function paint(columns, pass, offset) {
    const { start, length, kind } = columns;
    for (let i = firstSpan(columns, view.x0); i < columns.count && start[i] <= view.x1; i += 1) {
      if (PASS_OF[kind[i] < 8 ? kind[i] : 7] !== pass) continue;
      const a = Math.max(0, (start[i] - view.x0) * scale);
      const b = Math.min(width, (start[i] + length[i] - view.x0) * scale);
      if (b < 0 || a >= width) continue;
      const left = Math.floor(a);
      // A pixel of which less than half is covered keeps its colour, unless it has none.
      const right = Math.max(left + 1, Math.round(b));
      for (let x = left; x < right; x += 1) {
        const part = Math.min(x + 1, b) - Math.max(x, a);
        if (part < 0.5 && (pixels[offset + x] !== 0 && longest[x] === 0 || part < longest[x])) continue;
        if (part < longest[x]) continue;
        longest[x] = part;
        pixels[offset + x] = PIXELS[kind[i] < 8 ? kind[i] : 7];
      }
    }
  }
  const canvas = h('canvas', { width, height: lines });
  canvas.getContext('2d').putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(canvas, plot.x, self.y(first), plot.w, (last - first) * pitch);
  if (pitch >= 5) {
    ctx.fillStyle = self.palette.paper;
    for (let i = first; i <= last; i += 1) ctx.fillRect(plot.x, self.y(i) - 1, plot.w, pitch > 20 ? 4 : 2);
  }
}
const PIXELS = KINDS.map(([, colour]) => {
  const value = parseInt(colour.slice(1), 16);
  return (0xff000000 | (value & 255) << 16 | value & 0xff00 | value >> 16) >>> 0;
});
function slowestOf(rows, from, to) {
  const own = (row) => doc.summary.own_us[row.ranks[0]] ?? 0;
  let found = rows[from];
  for (let i = from + 1; i < to; i += 1) if (own(rows[i]) > own(found)) found = rows[i];
  return found;
}

// Starts of steps and incidents, as vertical lines.
function drawMoments(self, detailed) {
  const { ctx, plot, palette, view } = self;
  const starts = doc.breakdown.start_us.find((row) => row.some((value) => value !== null)) ?? [];
  ctx.textAlign = 'left';
  let free = -Infinity;
  const labels = [];
  starts.forEach((start, column) => {
    if (start === null || start < view.x0 || start > view.x1) return;
    const px = Math.round(self.x(start)) + 0.5;
    if (px - free < 8) return;
    labels.push([px, doc.steps[column]]);
    free = px;
    if (!detailed) return; // in bands, the steps themselves are visible
    ctx.strokeStyle = palette.quiet;
    ctx.setLineDash([2, 4]);
    ctx.beginPath();
    ctx.moveTo(px, plot.y);
    ctx.lineTo(px, plot.y + plot.h);
    ctx.stroke();
  });
  ctx.setLineDash([]);
  self.stepLabels = labels;
  ctx.strokeStyle = palette.bad;
  ctx.lineWidth = 2;
  for (const incident of doc.incidents) {
    if (incident.at_us < view.x0 || incident.at_us > view.x1) continue;
    ctx.beginPath();
    ctx.moveTo(self.x(incident.at_us), plot.y);
    ctx.lineTo(self.x(incident.at_us), plot.y + plot.h);
    ctx.stroke();
  }
  ctx.lineWidth = 1;
}
// Memory in use of its capacity as a thin light line, and FLOPs of the operations, of the rank's largest, as a dark one.
function drawLines(self, row, index, pitch, data) {
  if (row.whole) return;
  const rank = row.ranks[0];
  const memory = data.memory[rank] ?? [];
  const flop = data.flop[rank] ?? [];
  const most = (points) => points.reduce((top, point) => Math.max(top, point[1]), 1);
  drawLine(self, memory, doc.ranks[rank].memory_capacity_bytes ?? most(memory), index, pitch, 0.55);
  drawLine(self, flop, most(flop), index, pitch, 1);
}
function drawLine(self, points, top, index, pitch, alpha) {
  if (points.length < 2) return;
  const { ctx, view } = self;
  ctx.strokeStyle = self.palette.ink;
  ctx.globalAlpha = alpha;
  ctx.beginPath();
  let pen = false;
  let lastX = -Infinity;
  for (const [at, value] of points) {
    const px = self.x(at);
    if (at < view.x0 - (view.x1 - view.x0) || px - lastX < 1) continue;
    if (at > view.x1 + (view.x1 - view.x0)) break;
    const py = self.y(index + 1) - 2 - Math.min(1, value / top) * (pitch - 4);
    if (pen) ctx.lineTo(px, py);
    else ctx.moveTo(px, py);
    pen = true;
    lastX = px;
  }
  ctx.stroke();
  ctx.globalAlpha = 1;
  self.lines += 1;
}
const largest = (field) => doc.ranks.reduce((most, info) => Math.max(most, info[field] ?? 0), 0);

function drawLabels(self, state, first, last, pitch) {
  const { ctx, plot, palette } = self;
  const most = { flop: largest('flop_per_step'), flops: largest('flop_per_second') };
  const every = Math.max(1, Math.ceil(13 / pitch));
  const order = Array.from({ length: last - first }, (_, i) => first + i);
  const atFault = (i) => state.rows[i].ranks.some((rank) => blamedRanks.has(doc.ranks[rank].rank));
  order.sort((a, b) => atFault(a) - atFault(b)); // the last are not covered by others
  for (const i of order) {
    const row = state.rows[i];
    const isBlamed = atFault(i);
    if (isBlamed) {
      ctx.fillStyle = palette.bad;
      ctx.fillRect(plot.x - 5, self.y(i), 3, Math.max(2, pitch));
    }
    if ((i - first) % every !== 0 && !isBlamed) continue;
    ctx.textAlign = 'right';
    if (isBlamed && every > 1) {
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, self.y(i + 0.5) - 8, plot.x - 46, 16);
    }
    ctx.fillStyle = isBlamed ? palette.bad : palette.ink;
    ctx.fillText(row.label, plot.x - 46, self.y(i + 0.5));
    if (row.whole || pitch < 9) continue;
    const info = doc.ranks[row.ranks[0]];
    const shares = [most.flop && info.flop_per_step / most.flop, most.flops && info.flop_per_second / most.flops,
      info.memory_capacity_bytes && info.peak_memory_bytes / info.memory_capacity_bytes];
    shares.forEach((share, box) => {
      const [x, size] = [plot.x - 40 + box * 11, Math.min(18, pitch - 3)];
      ctx.strokeStyle = palette.line;
      ctx.strokeRect(x + 0.5, Math.round(self.y(i + 0.5) - size / 2) + 0.5, 9, size);
      ctx.fillStyle = ['#5a78c9', '#74ba62', '#c2ab3a'][box];
      const part = Math.max(0, Math.min(1, share || 0)) * (size - 1);
      ctx.fillRect(x + 1, self.y(i + 0.5) + size / 2 - part, 8, part);
    });
  }
  ctx.textAlign = 'left';
  ctx.fillStyle = palette.quiet;
  ctx.fillText('step', 6, 12);
  let free = -Infinity;
  for (const [px, step] of self.stepLabels ?? []) {
    if (px < free) continue;
    ctx.fillText(String(step), px, 14);
    free = px + ctx.measureText(String(step)).width + 8;
  }
}
