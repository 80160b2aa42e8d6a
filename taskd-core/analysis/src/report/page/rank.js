// The page of one rank, at `#rank-7`.
function rankPage(rank) {
  const row = rankRow.get(rank);
  const body = h('section', { 'aria-labelledby': 'rank-title' });
  if (row === undefined) {
    body.append(h('h2', { id: 'rank-title' }, `Rank ${rank}`), emptyView(`The trace has no rank ${rank}.`));
    return body;
  }
  const info = doc.ranks[row];
  const neighbour = (offset, text) => doc.ranks[row + offset] && h('a', { href: `#rank-${doc.ranks[row + offset].rank}` }, text);
  body.append(h('h2', { id: 'rank-title' }, `Rank ${rank}`), h('div', { class: 'tools' }, h('a', { href: '#overview' }, 'All ranks'),
    neighbour(-1, 'previous rank'), neighbour(1, 'next rank'),
    h('button', { type: 'button', class: 'main', onclick: () => {
      location.hash = timelineHash(rank);
    } }, 'Timeline of this rank')));
  for (const blame of doc.verdict.blamed.filter((blame) => blame.ranks.includes(rank))) {
    body.append(h('div', { class: 'blame' }, h('h3', null, `${blame.component}: ${blame.cause}`),
      h('p', null, `Slowdown ${blame.slowdown_percent.toFixed(1)} %, ${blame.onset_step === null ? 'no onset known' : `since step ${blame.onset_step}`}.`), evidenceTable(blame.evidence)));
  }
  body.append(facts([['Host', info.host ?? 'not in the trace'], ['Device', plain(info.device)], ['Pipeline stage', plain(stageOf(row))],
    ['Mean step', msUnit(means('breakdown.total_us')?.of_ranks[row])], ['Mean step without waiting', msUnit(doc.summary.own_us[row])],
    ['Transfer / (transfer + wait)', percent(doc.summary.transfer_share[row])], ['FLOPs per step', flop(info.flop_per_step)], ['FLOPS', flops(info.flop_per_second)],
    ['Peak memory', `${bytes(info.peak_memory_bytes)} of ${bytes(info.memory_capacity_bytes)}`], ['Clock offset', `${plain(doc.clocks.offset_us[row])} µs`]]));
  const charts = [rankSteps(row, body), rankMemory(row, body)].filter(Boolean);
  rankOperations(rank, body);
  const links = doc.communication.links.filter((link) => link.source === rank || link.destination === rank).sort((a, b) => b.time_us - a.time_us);
  body.append(h('h3', null, 'Links'), links.length === 0 ? emptyView('The trace names no link of this rank.')
    : dataGrid({ label: 'Links of the rank', rows: links, columns: [['Source', 'source', String], ['Destination', 'destination', String], ['Transfers', 'count', String],
      ['Time (ms)', 'time_us', ms], ['Bytes', 'bytes', bytes], ['Bandwidth', 'bytes_per_second', rate]].map(([title, field, text]) => (
      { title, number: true, value: (link) => link[field], text: (link) => text(link[field]) })).concat({ title: 'Kind', value: (link) => link.kind, text: (link) => link.kind }) }));
  const hints = doc.hints.filter((hint) => hint.rank === rank);
  if (hints.length > 0) body.append(h('h3', null, 'Hints'), h('ul', null, hints.map((hint) => h('li', null, hint.text))));
  requestAnimationFrame(() => charts.forEach((one) => one.draw()));
  return body;
}
function rankSteps(row, body) {
  const all = present(['breakdown.total_us', 'breakdown.interval_us', 'breakdown.forward_backward_us', 'breakdown.tail_us', 'breakdown.data_loader_us',
    'breakdown.save_checkpoint_us', 'breakdown.idle_us', 'overlap.communication_alone_us', 'communication.transfer_us', 'communication.wait_us']);
  body.append(h('h3', null, 'Steps'));
  if (all.length === 0 || doc.steps.length === 0) {
    body.append(emptyView('The trace has no step of this rank.'));
    return null;
  }
  const value = (path, column) => table(path)[row]?.[column] ?? null;
  const parts = all.filter((path) => STEP_PARTS.includes(path));
  const go = (column) => {
    location.hash = `#timeline/rank-${doc.ranks[row].rank}/step-${doc.steps[column]}`;
  };
  const bars = barChart({ label: `Steps of rank ${doc.ranks[row].rank}`, series: parts.length ? parts : ['breakdown.total_us'], keys: () => doc.steps.map((_, column) => column),
    name: (column) => `step ${doc.steps[column]}`, value, go, title: 'steps' });
  body.append(legend((parts.length ? parts : ['breakdown.total_us']).map((path) => COLUMNS[path])), bars.element,
    dataGrid({ label: `Steps of rank ${doc.ranks[row].rank}`, rows: doc.steps.map((_, column) => column), open: go,
      pinned: () => ['mean', ...all.map((path) => ms(means(path)?.of_ranks[row]))],
      columns: [{ title: 'Step', number: true, value: (column) => doc.steps[column], text: (column) => String(doc.steps[column]) },
        ...all.map((path) => ({ title: `${COLUMNS[path][0]} (ms)`, number: true, value: (column) => value(path, column), text: (column) => ms(value(path, column)) }))] }));
  return bars;
}
function rankMemory(row, body) {
  const points = timeline().memory[row] ?? [];
  body.append(h('h3', null, 'Memory'));
  if (points.length < 2) {
    body.append(emptyView('The trace has no memory use over time of this rank.'));
    return null;
  }
  const top = Math.max(doc.ranks[row].memory_capacity_bytes ?? 0, ...points.map((point) => point[1]));
  const view = chart({
    label: 'Memory in use over time', height: 160, margin: { l: 62 }, brush: 'x', origin: timeOrigin, extent: () => ({ x0: points[0][0], x1: points[points.length - 1][0] + 1, y0: 0, y1: 1 }),
    draw(self) {
      const place = frame(self, 0, top / 2 ** 30, 'GiB');
      self.ctx.save();
      self.ctx.beginPath();
      self.ctx.rect(self.plot.x, self.plot.y, self.plot.w, self.plot.h);
      self.ctx.clip();
      self.ctx.strokeStyle = '#c2ab3a';
      self.ctx.beginPath();
      points.forEach(([at, size], i) => (i ? self.ctx.lineTo(self.x(at), place(size / 2 ** 30)) : self.ctx.moveTo(self.x(at), place(size / 2 ** 30))));
      self.ctx.stroke();
      self.ctx.restore();
      timeAxis(self);
    },
    hover(px, py, self) {
      const at = self.unX(px);
      const point = points.findLast((point) => point[0] <= at);
      return point ? `${bytes(point[1])} at ${seconds(point[0])}` : null;
    },
  });
  body.append(view.element);
  return view;
}
function rankOperations(rank, body) {
  const operations = doc.communication.operations.filter((operation) => operation.rank === rank);
  body.append(h('h3', null, 'Communication operations'), operations.length === 0 ? emptyView(doc.communication.operations_left_out > 0
    ? 'No operation of this rank is in this report: its size limit keeps those with the most time.' : 'The trace has no communication operation of this rank.')
    : dataGrid({ label: 'Communication operations of the rank', rows: operations, sort: { column: 3, down: true }, columns: [
      { title: 'Operation', value: (one) => one.name, text: (one) => one.name }, { title: 'Group', value: (one) => one.group, text: (one) => one.group || NONE },
      { title: 'Runs', number: true, value: (one) => one.count, text: (one) => String(one.count) },
      { title: 'Time (ms)', number: true, value: (one) => one.total_us, text: (one) => ms(one.total_us) },
      { title: 'of it wait (ms)', number: true, value: (one) => one.wait_us, text: (one) => ms(one.wait_us) },
      { title: 'Bytes', number: true, value: (one) => one.bytes, text: (one) => bytes(one.bytes) }] }));
}
