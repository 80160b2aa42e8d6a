// Table and bars of a group of tables of the document: the step trace, and the overlap. Per rank (means, or one step) or per
// step (means, or one rank). Bars and rows are linked to the rank's page and to the timeline.
function breakdownView({ label, paths, stacked, stageFilter }) {
  const shown = present(paths);
  const state = { by: 'rank', one: '', stage: '' };
  const value = (path, key) => {
    const rows = table(path);
    if (state.by === 'rank') {
      return state.one === '' ? means(path)?.of_ranks[key] ?? null : rows[key]?.[stepColumn.get(Number(state.one))] ?? null;
    }
    return state.one === '' ? means(path)?.of_steps[key] ?? null : rows[rankRow.get(Number(state.one))]?.[key] ?? null;
  };
  const keys = () => (state.by === 'rank'
    ? rankOrder.filter((row) => state.stage === '' || String(stageOf(row)) === state.stage) : doc.steps.map((_, column) => column));
  const name = (key) => (state.by === 'rank' ? rankName(key) : `step ${doc.steps[key]}`);
  const go = (key) => {
    location.hash = state.by === 'rank' ? `#rank-${doc.ranks[key].rank}` : `#timeline/step-${doc.steps[key]}`;
  };
  const place = h('div');
  const tools = h('div', { class: 'tools' });
  let bars;
  let grid;

  function rebuild() {
    const first = state.by === 'rank'
      ? [{ title: 'Rank', number: true, value: (row) => doc.ranks[row].rank, text: (row) => String(doc.ranks[row].rank) },
        { title: 'Host', value: (row) => doc.ranks[row].host, text: (row) => doc.ranks[row].host ?? NONE },
        ...(hasStages ? [{ title: 'Pipeline stage', number: true, value: stageOf, text: (row) => plain(stageOf(row)) }] : [])]
      : [{ title: 'Step', number: true, value: (column) => doc.steps[column], text: (column) => String(doc.steps[column]) }];
    const columns = [...first, ...shown.map((path) => ({
      title: `${COLUMNS[path][0]} (ms)`, number: true, value: (key) => value(path, key), text: (key) => ms(value(path, key)),
    }))];
    const pinned = () => [state.by === 'rank' && state.one === '' || state.by === 'step' && state.one === '' ? 'mean of all' : 'mean',
      ...first.slice(1).map(() => ''), ...shown.map((path) => ms(meanOf(path)))];
    grid = dataGrid({ label, columns, rows: keys(), open: go, pinned,
      mark: (key) => state.by === 'rank' && blamedRanks.has(doc.ranks[key].rank) });
    bars = barChart({ label: `${label}: bars`, series: shown.filter((path) => stacked.includes(path)), keys, name, value, go,
      title: state.by === 'rank' ? 'ranks' : 'steps' });
    place.replaceChildren(legend(shown.filter((path) => stacked.includes(path)).map((path) => COLUMNS[path])), bars.element, grid);
    bars.draw();
  }
  // The mean that belongs to what is shown: of the chosen step, of the chosen rank, or of all.
  function meanOf(path) {
    const mean = means(path);
    if (!mean) return null;
    if (state.one === '') return mean.all;
    return state.by === 'rank' ? mean.of_steps[stepColumn.get(Number(state.one))] : mean.of_ranks[rankRow.get(Number(state.one))];
  }
  function offer() {
    const list = state.by === 'rank' ? doc.steps : doc.ranks.map((info) => info.rank);
    tools.replaceChildren(...[
      choice('Rows', [['rank', 'one per rank'], ['step', 'one per step']], (by) => {
        Object.assign(state, { by, one: '', stage: '' });
        offer();
        rebuild();
      }, state.by),
      choice(state.by === 'rank' ? 'Step' : 'Rank', [['', state.by === 'rank' ? 'mean of all steps' : 'mean of all ranks'],
        ...list.map((number) => [String(number), String(number)])], (one) => {
        state.one = one;
        grid.refresh();
        bars.draw();
      }, state.one),
      stageFilter && hasStages && state.by === 'rank' && choice('Pipeline stage', [['', 'all'],
        ...[...new Set(doc.ranks.map((_, row) => stageOf(row)))].sort((a, b) => a - b).map((stage) => [String(stage), plain(stage)])],
      (stage) => {
        state.stage = stage;
        grid.setRows(keys());
        bars.draw();
      }, state.stage)].filter(Boolean));
  }
  offer();
  rebuild();
  return h('div', null, tools, place);
}

// Stacked bars. With more bars than pixels, one pixel shows the highest of its bars.
function barChart({ label, series, keys, name, value, go, title }) {
  const total = (key) => series.reduce((sum, path) => sum + (value(path, key) ?? 0), 0);
  const at = (px, self) => {
    const list = keys();
    const index = Math.floor((px - self.plot.x) / self.plot.w * list.length);
    return px >= self.plot.x && index < list.length ? list[index] : undefined;
  };
  return chart({
    label, height: 190, margin: { l: 62, b: 22 },
    draw(self) {
      const { ctx, plot, palette } = self;
      const list = keys();
      const top = Math.max(1e-9, ...list.map(total)) / 1000;
      const py = frame(self, 0, top, 'ms');
      const width = plot.w / list.length;
      let shownPixel = -1;
      let highest = -1;
      list.forEach((key, i) => {
        const x = plot.x + i * width;
        if (width < 1) {
          if (Math.floor(x) === shownPixel && total(key) <= highest) return;
          if (Math.floor(x) !== shownPixel) highest = -1;
          shownPixel = Math.floor(x);
          highest = total(key);
          ctx.clearRect(shownPixel, plot.y, 1, plot.h);
        }
        let sum = 0;
        for (const path of series) {
          const part = (value(path, key) ?? 0) / 1000;
          ctx.fillStyle = COLUMNS[path][1];
          ctx.fillRect(x, py(sum + part), Math.max(1, width - (width > 5 ? 1.5 : 0)), py(sum) - py(sum + part));
          sum += part;
        }
      });
      ctx.fillStyle = palette.quiet;
      ctx.textAlign = 'center';
      const every = Math.max(1, Math.ceil(46 / width));
      for (let i = 0; i < list.length; i += every) {
        ctx.fillText(name(list[i]).replace(/^(rank|step) (\S+).*$/, '$2'), plot.x + (i + 0.5) * width, plot.y + plot.h + 11);
      }
      sideTitle(self, title, self.width - 6);
    },
    hover(px, py, self) {
      const key = at(px, self);
      if (key === undefined) return null;
      return [name(key), ...series.map((path) => `${COLUMNS[path][0]}: ${msUnit(value(path, key))}`)].join('\n');
    },
    click(px, py, self) {
      const key = at(px, self);
      if (key !== undefined) go(key);
    },
    step: {
      count: () => keys().length,
      place: (i, self) => [self.plot.x + (i + 0.5) * self.plot.w / keys().length, self.plot.y + self.plot.h / 2],
    },
  });
}
