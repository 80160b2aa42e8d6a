// Heat maps of the ranks: FLOPs, FLOPS and peak memory, in a grid by host with eight ranks per row.
const PER_ROW = 8;
const HEAT = [[0xfb, 0xf3, 0xd9], [0xf2, 0xb1, 0x5c], [0xc2, 0x45, 0x2d], [0x6b, 0x12, 0x2a]];

function heatView(body) {
  const most = { flop: largest('flop_per_step'), flops: largest('flop_per_second'), memory: largest('peak_memory_bytes') };
  // Without the capacity of any device, the largest rank takes its place.
  const sized = doc.ranks.some((info) => info.memory_capacity_bytes);
  const room = (info) => (sized ? info.memory_capacity_bytes : most.memory);
  const maps = [
    ['FLOPs per step, of the largest rank', (info) => most.flop && info.flop_per_step !== null ? info.flop_per_step / most.flop : null, (info) => flop(info.flop_per_step)],
    ['FLOPS, of the largest rank', (info) => most.flops && info.flop_per_second !== null ? info.flop_per_second / most.flops : null, (info) => flops(info.flop_per_second)],
    [`Peak memory, of the ${sized ? 'capacity' : 'largest rank'}`,
      (info) => room(info) && info.peak_memory_bytes !== null ? info.peak_memory_bytes / room(info) : null,
      (info) => `${bytes(info.peak_memory_bytes)} of ${bytes(room(info))}`],
  ];
  const state = { step: 0.1 };
  const views = [];
  const scale = h('div', { class: 'legend' });
  const paintScale = () => {
    scale.replaceChildren('0 % ', ...Array.from({ length: Math.round(1 / state.step) }, (_, i) => {
      const swatch = h('i', { title: `${Math.round(100 * i * state.step)} % and more` });
      swatch.style.background = heatColour(i * state.step, state.step);
      swatch.style.marginRight = '0';
      return swatch;
    }), ' 100 %');
  };
  body.append(h('div', { class: 'tools' }, choice('Colour step', [['0.1', '0.1'], ['0.05', '0.05'], ['0.02', '0.02']], (step) => {
    state.step = Number(step);
    paintScale();
    views.forEach((view) => view.draw());
  })), scale);
  paintScale();
  const place = h('div', { class: doc.ranks.length > 16 * PER_ROW ? null : 'two' });
  for (const [title, share, text] of maps) {
    const known = doc.ranks.some((info) => share(info) !== null && share(info) !== 0);
    const view = known && heatMap(title, share, text, state);
    place.append(h('div', null, h('h3', null, title), known ? view.element : emptyView(title.startsWith('Peak')
      ? 'The trace has no memory figures.' : 'The trace has no arithmetic of the ranks.')));
    if (view) views.push(view);
  }
  body.append(place);
  views.forEach((view) => view.draw());
}
function heatColour(share, step) {
  const level = Math.min(1, Math.max(0, Math.floor(share / step + 1e-9) * step / (1 - step)));
  const at = level * (HEAT.length - 1);
  const i = Math.min(HEAT.length - 2, Math.floor(at));
  return `rgb(${HEAT[i].map((low, c) => Math.round(low + (HEAT[i + 1][c] - low) * (at - i))).join(',')})`;
}
function heatMap(title, share, text, state) {
  const hosts = new Map();
  doc.ranks.forEach((info, row) => {
    const host = info.host ?? 'unknown host';
    hosts.set(host, [...(hosts.get(host) ?? []), row]);
  });
  // Blocks of one host side by side, as many as fit.
  const lines = [];
  for (const [host, rows] of hosts) {
    for (let i = 0; i < rows.length; i += PER_ROW) lines.push({ host: i === 0 ? host : '', rows: rows.slice(i, i + PER_ROW) });
  }
  const tall = lines.length > 16;
  const size = tall ? { cell: 15, label: 84, line: 17 } : { cell: 30, label: 110, line: 32 };
  const block = size.label + PER_ROW * size.cell + 14;
  const layout = (width) => {
    const across = Math.max(1, Math.floor((width - 8) / block));
    return { across, perColumn: Math.ceil(lines.length / across) };
  };
  const spot = (line, j, self) => {
    const { perColumn } = layout(self.width);
    return [8 + Math.floor(line / perColumn) * block + size.label + j * size.cell, 8 + line % perColumn * size.line];
  };
  const places = lines.flatMap((line, i) => line.rows.map((row, j) => [i, j, row]));
  const at = (px, py, self) => places.find(([line, j]) => {
    const [x, y] = spot(line, j, self);
    return px >= x && px < x + size.cell && py >= y && py < y + size.line;
  });
  return chart({
    label: title, height: 16 + Math.min(lines.length, 8) * size.line, margin: {},
    draw(self) {
      const needed = 16 + layout(self.width).perColumn * size.line;
      if (needed !== self.height) {
        self.setHeight(needed);
        return;
      }
      const { ctx, palette } = self;
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, 0, self.width, self.height);
      lines.forEach((line, i) => {
        const [x, y] = spot(i, 0, self);
        ctx.textAlign = 'right';
        ctx.fillStyle = palette.quiet;
        ctx.fillText(clipped(ctx, line.host, size.label - 12), x - 6, y + size.line / 2);
      });
      for (const [line, j, row] of places) {
        const [x, y] = spot(line, j, self);
        const value = share(doc.ranks[row]);
        ctx.fillStyle = value === null ? palette.grid : heatColour(value, state.step);
        ctx.fillRect(x, y, size.cell - 1.5, size.line - 2);
        if (blamedRanks.has(doc.ranks[row].rank)) {
          ctx.strokeStyle = palette.accent;
          ctx.lineWidth = 3;
          ctx.strokeRect(x + 0.5, y + 0.5, size.cell - 2.5, size.line - 3);
          ctx.lineWidth = 1;
        }
        if (tall) continue;
        ctx.textAlign = 'center';
        ctx.fillStyle = (value ?? 0) > 0.6 ? '#ffffff' : '#1b2128';
        if (value === null) ctx.fillStyle = palette.quiet;
        ctx.fillText(String(doc.ranks[row].rank), x + size.cell / 2, y + size.line / 2);
      }
    },
    hover(px, py, self) {
      const found = at(px, py, self);
      return found ? `${rankName(found[2])}\n${text(doc.ranks[found[2]])} (${percent(share(doc.ranks[found[2]]))})\nclick: page of the rank` : null;
    },
    click(px, py, self) {
      const found = at(px, py, self);
      if (found) location.hash = `#rank-${doc.ranks[found[2]].rank}`;
    },
    step: {
      count: () => places.length, row: () => PER_ROW,
      place: (i, self) => {
        const [x, y] = spot(places[i][0], places[i][1], self);
        return [x + size.cell / 2, y + size.line / 2];
      },
    },
  });
}
function clipped(ctx, text, width) {
  if (ctx.measureText(text).width <= width) return text;
  let end = Math.min(text.length, 24);
  while (end > 1 && ctx.measureText(`…${text.slice(-end)}`).width > width) end -= 1;
  return `…${text.slice(-end)}`;
}
