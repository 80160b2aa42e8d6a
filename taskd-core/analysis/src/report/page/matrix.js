// Adjacency matrix of some ranks: time, bytes and bandwidth of each link, with box plots and their outliers.
const MATRIX_DETAILED = 8; // ranks up to which a cell has box plots; more ranks: one colour per cell
const MATRIX_MAX = 128; // ranks up to which a cell is large enough to see

function matrixView(wanted, why) {
  const ranks = wanted.slice(0, MATRIX_MAX);
  const chosen = new Set(ranks);
  const links = doc.communication.links.filter((link) => chosen.has(link.source) && chosen.has(link.destination));
  if (links.length === 0) {
    return emptyView(doc.communication.links.length === 0
      ? 'The trace names no single link: only some profilers record transfers by source and destination.' : 'There is no link between these ranks.');
  }
  const kinds = [...new Set(links.map((link) => link.kind))].sort();
  const state = { kind: kinds[0] };
  const read = h('p', { class: 'read', 'aria-live': 'polite' }, 'Click an outlier for its operation.');
  const cells = () => new Map(links.filter((link) => link.kind === state.kind).map((link) => [`${link.source} ${link.destination}`, link]));
  const detailed = ranks.length <= MATRIX_DETAILED;
  const side = (self) => ({ left: 64, top: 24, w: (self.width - 72) / ranks.length, h: (self.height - 30) / ranks.length });
  const rows = (list) => [
    { name: 'time', bar: (link) => link.time_us, box: (link) => link.time_box, text: (value) => msUnit(value) },
    { name: 'bytes', bar: (link) => link.bytes, box: (link) => link.bytes_box, text: bytes },
    { name: 'bandwidth', box: (link) => link.bandwidth_box, text: rate },
  ].map((row) => ({ ...row, most: row.bar ? Math.max(1, ...list.map(row.bar)) : 0,
    top: Math.max(1e-9, ...list.map(row.box).filter(Boolean).flatMap((box) => [box.high, ...box.outliers.map((outlier) => outlier.value)])) }));
  let spots = [];
  const cellAt = (px, py, self) => {
    const { left, top, w, h: height } = side(self);
    const [i, j] = [Math.floor((py - top) / height), Math.floor((px - left) / w)];
    return ranks[i] !== undefined && ranks[j] !== undefined ? [ranks[i], ranks[j]] : null;
  };
  const nearSpot = (px, py) => spots.find((spot) => Math.hypot(spot.x - px, spot.y - py) < 6);
  const view = chart({
    label: 'Adjacency matrix: rows send, columns receive', height: detailed ? 60 + ranks.length * 96 : Math.min(760, 80 + ranks.length * 20), margin: {},
    draw(self) {
      const { ctx, palette } = self;
      const { left, top, w, h: height } = side(self);
      const list = [...cells().values()];
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, 0, self.width, self.height);
      ctx.fillStyle = palette.quiet;
      const every = Math.max(1, Math.ceil(16 / height), Math.ceil(26 / w));
      ranks.forEach((rank, i) => {
        if (i % every !== 0) return;
        ctx.textAlign = 'right';
        ctx.fillText(`${rank} →`, left - 6, top + (i + 0.5) * height);
        ctx.textAlign = 'center';
        ctx.fillText(`→ ${rank}`, left + (i + 0.5) * w, 12);
      });
      spots = [];
      const scales = rows(list);
      const fastest = Math.max(1e-9, ...list.map((link) => link.bytes_per_second ?? 0));
      const place = new Map(ranks.map((rank, i) => [rank, i]));
      for (const link of list) {
        const [x, y] = [left + place.get(link.destination) * w, top + place.get(link.source) * height];
        if (detailed) matrixCell(self, link, scales, x, y, w, height, spots);
        else {
          ctx.globalAlpha = 0.12 + 0.88 * (link.bytes_per_second ?? 0) / fastest;
          ctx.fillStyle = palette.accent;
          ctx.fillRect(x, y, Math.max(1, w - 0.5), Math.max(1, height - 0.5));
          ctx.globalAlpha = 1;
        }
      }
      ctx.strokeStyle = palette.line;
      ctx.lineWidth = detailed ? 1 : 0.3;
      ctx.beginPath();
      for (let i = 0; i <= ranks.length; i += 1) {
        ctx.moveTo(left, top + i * height);
        ctx.lineTo(left + ranks.length * w, top + i * height);
        ctx.moveTo(left + i * w, top);
        ctx.lineTo(left + i * w, top + ranks.length * height);
      }
      ctx.stroke();
      ctx.lineWidth = 1;
      view.element.dataset.outlier = spots.length === 0 ? '' : `${spots[0].x} ${spots[0].y}`;
    },
    hover(px, py, self) {
      const spot = nearSpot(px, py);
      if (spot) return spot.text;
      const cell = cellAt(px, py, self);
      const link = cell && cells().get(cell.join(' '));
      return link ? describeLink(link) : null;
    },
    click(px, py, self) {
      const spot = nearSpot(px, py);
      const cell = cellAt(px, py, self);
      const link = cell && cells().get(cell.join(' '));
      if (spot) {
        read.replaceChildren(spot.text.replaceAll('\n', ', '), ' ',
          spot.step === null ? '' : h('a', { href: `#timeline/rank-${spot.link.source}/step-${spot.step}` }, 'show in the timeline'));
      } else if (link) read.textContent = describeLink(link).replaceAll('\n', '; ');
    },
    step: {
      count: () => ranks.length ** 2, row: () => ranks.length,
      place: (i, self) => {
        const { left, top, w, h: height } = side(self);
        return [left + (i % ranks.length + 0.5) * w, top + (Math.floor(i / ranks.length) + 0.5) * height];
      },
    },
    back: () => read.replaceChildren('Click an outlier for its operation.'),
  });
  requestAnimationFrame(view.draw);
  return h('div', null, h('div', { class: 'tools' }, kinds.length > 1 && choice('Kind of link', kinds.map((kind) => [kind, kind]), (kind) => {
    state.kind = kind;
    view.draw();
  }, state.kind)), detailed && legend(Object.entries(MATRIX_COLOURS)), note(`Shown: ${why} (${ranks.length} ranks${wanted.length > MATRIX_MAX ? ` of ${wanted.length}, the first` : ''}), ${kinds.length > 1
    ? 'one kind of link at a time' : `links of kind ${kinds[0]}`}. Rows send, columns receive. ${detailed
    ? 'In each cell: bar and box plot of time, bar and box plot of bytes, box plot of bandwidth; each on one scale over the matrix.'
    : 'Dark cells have the most bandwidth; choose at most 8 ranks for box plots.'}`), view.element, read);
}
function describeLink(link) {
  const box = (name, plot, text) => (plot ? `${name}: median ${text(plot.median)}, quartiles ${text(plot.q1)} and ${text(plot.q3)}, ${plot.outlier_count} outliers` : null);
  return [`${link.source} → ${link.destination} (${link.kind}): ${link.count} transfers`, `time ${msUnit(link.time_us)}, ${bytes(link.bytes)}, ${rate(link.bytes_per_second)}`,
    box('time', link.time_box, msUnit), box('bytes', link.bytes_box, bytes), box('bandwidth', link.bandwidth_box, rate)].filter(Boolean).join('\n');
}
const MATRIX_COLOURS = { time: '#e6882e', bytes: '#5a78c9', bandwidth: '#3fa45b' };
function matrixCell(self, link, scales, x, y, w, height, spots) {
  const { ctx, palette } = self;
  const line = (height - 8) / 5;
  let at = y + 4 + line / 2;
  const inner = w - 16;
  for (const scale of scales) {
    if (scale.bar) {
      ctx.fillStyle = MATRIX_COLOURS[scale.name];
      ctx.fillRect(x + 8, at - line * 0.3, Math.max(1, inner * scale.bar(link) / scale.most), line * 0.6);
      at += line;
    }
    const box = scale.box(link);
    if (box) {
      const px = (value) => x + 8 + inner * Math.max(0, value) / scale.top;
      ctx.strokeStyle = palette.ink;
      ctx.beginPath();
      ctx.moveTo(px(box.low), at);
      ctx.lineTo(px(box.high), at);
      ctx.stroke();
      ctx.globalAlpha = 0.45;
      ctx.fillStyle = MATRIX_COLOURS[scale.name];
      ctx.fillRect(px(box.q1), at - line * 0.32, Math.max(1.5, px(box.q3) - px(box.q1)), line * 0.64);
      ctx.globalAlpha = 1;
      ctx.fillStyle = palette.ink;
      ctx.fillRect(px(box.median) - 0.75, at - line * 0.36, 1.5, line * 0.72);
      ctx.fillStyle = palette.bad;
      for (const outlier of box.outliers) {
        ctx.beginPath();
        ctx.arc(px(outlier.value), at, 2.4, 0, 2 * Math.PI);
        ctx.fill();
        spots.push({ x: px(outlier.value), y: at, link, step: outlier.step, text:
          `${link.source} → ${link.destination}: outlier of ${scale.name} ${scale.text(outlier.value)}\n${outlier.operation}`
          + `${outlier.step === null ? '' : `\nstep ${outlier.step}`}` });
      }
    }
    at += line;
  }
}

// All links, with filters.
function linksView() {
  const { links } = doc.communication;
  if (links.length === 0) return emptyView('The trace names no single link: only some profilers record transfers by source and destination.');
  const filter = { source: '', destination: '', kind: '' };
  const rows = () => links.map((_, i) => i).filter((i) => (filter.source === '' || links[i].source === Number(filter.source))
    && (filter.destination === '' || links[i].destination === Number(filter.destination)) && (filter.kind === '' || links[i].kind === filter.kind));
  const number = (title, field, text) => ({ title, number: true, value: (i) => links[i][field], text: (i) => text(links[i][field]) });
  const grid = dataGrid({ label: 'Links of the whole network', rows: rows(), sort: { column: 4, down: true },
    mark: (i) => blamedRanks.has(links[i].source) && blamedRanks.has(links[i].destination),
    columns: [number('Source', 'source', String), number('Destination', 'destination', String),
      { title: 'Kind', value: (i) => links[i].kind, text: (i) => links[i].kind }, number('Transfers', 'count', String),
      number('Time (ms)', 'time_us', ms), number('Bytes', 'bytes', bytes), number('Bandwidth', 'bytes_per_second', rate)] });
  const apply = () => grid.setRows(rows());
  const text = (label, field) => h('label', null, label, h('input', { type: 'text', inputmode: 'numeric', oninput: (event) => {
    filter[field] = event.target.value.trim();
    apply();
  } }));
  return h('div', null, h('div', { class: 'tools' }, text('Source', 'source'), text('Destination', 'destination'),
    choice('Kind', [['', 'all'], ...linkKinds.map((kind) => [kind, kind])], (kind) => {
      filter.kind = kind;
      apply();
    })), grid, note('Bandwidth is bytes divided by time, over all transfers of the link.'
      + (doc.communication.links_left_out > 0 ? ` ${doc.communication.links_left_out} links with the least time are not in this report because of its size limit.` : '')));
}
