// Time overview: the total of each rank per step on the left axis; mean transfer and mean wait on the right one.
const TIMES_COLOURS = { total: '#7d8fa3', transfer: '#e6882e', wait: '#3f6fd0' };
function timesView(body) {
  const totals = table('breakdown.total_us');
  if (!totals) {
    body.append(emptyView('The trace has no step times: no step was marked, or no rank has a complete step.'));
    return;
  }
  const right = ['communication.transfer_us', 'communication.wait_us'].filter(means).map((path) => [path, means(path).of_steps])
    .filter(([, values]) => values.some((value) => value !== null));
  const colour = { 'communication.transfer_us': TIMES_COLOURS.transfer, 'communication.wait_us': TIMES_COLOURS.wait };
  const count = doc.steps.length;
  let top = 0;
  for (const row of totals) for (const value of row) top = Math.max(top, value ?? 0);
  const rightTop = Math.max(1, ...right.flatMap(([, values]) => values.map((value) => value ?? 0)));
  const nearest = (px, self) => Math.max(0, Math.min(count - 1, Math.round(self.unX(px))));
  const view = chart({
    label: 'Time overview: step time of each rank (left axis), mean transfer and wait (right axis)', height: 300,
    margin: { l: 62, r: right.length ? 62 : 12, b: 34 }, brush: 'x',
    extent: () => ({ x0: -0.5, x1: count - 0.5, y0: 0, y1: 1 }), origin: stepOrigin,
    draw(self) {
      const { ctx, plot, palette } = self;
      const py = frame(self, 0, top / 1000 * 1.05, 'step time (ms)');
      ctx.save();
      ctx.beginPath();
      ctx.rect(plot.x, plot.y, plot.w, plot.h);
      ctx.clip();
      const line = (values, place) => {
        let pen = false;
        const first = Math.max(0, Math.floor(self.view.x0));
        const last = Math.min(count - 1, Math.ceil(self.view.x1));
        ctx.beginPath();
        for (let column = first; column <= last; column += 1) {
          const value = values[column] ?? null;
          if (value === null) {
            pen = false;
            continue;
          }
          if (pen) ctx.lineTo(self.x(column), place(value / 1000));
          else ctx.moveTo(self.x(column), place(value / 1000));
          if (count === 1) ctx.lineTo(self.x(column) + 6, place(value / 1000));
          pen = true;
        }
        ctx.stroke();
      };
      ctx.lineWidth = 1;
      ctx.globalAlpha = Math.max(0.08, Math.min(0.8, 12 / totals.length));
      ctx.strokeStyle = TIMES_COLOURS.total;
      for (const row of totals) line(row, py);
      ctx.globalAlpha = 1;
      ctx.lineWidth = 1.6;
      ctx.strokeStyle = palette.bad;
      totals.forEach((row, i) => blamedRanks.has(doc.ranks[i].rank) && blamedRanks.size <= 16 && line(row, py));
      ctx.lineWidth = 2;
      const rightPlace = (value) => plot.y + plot.h - value / (rightTop / 1000 * 1.05) * plot.h;
      for (const [path, values] of right) {
        ctx.strokeStyle = colour[path];
        line(values, rightPlace);
      }
      ctx.restore();
      if (right.length) {
        ctx.textAlign = 'left';
        ctx.fillStyle = palette.quiet;
        for (const mark of ticks(0, rightTop / 1000 * 1.05, plot.h / 40)) ctx.fillText(short(mark), plot.x + plot.w + 6, rightPlace(mark));
        sideTitle(self, 'mean transfer, wait (ms)', self.width - 8);
      }
      ctx.textAlign = 'center';
      ctx.fillStyle = palette.quiet;
      const every = Math.max(1, Math.ceil(48 / (plot.w / (self.view.x1 - self.view.x0))));
      for (let column = Math.max(0, Math.ceil(self.view.x0)); column <= Math.min(count - 1, self.view.x1); column += every) {
        ctx.fillText(String(doc.steps[column]), self.x(column), plot.y + plot.h + 11);
      }
      ctx.fillText('step', plot.x + plot.w / 2, plot.y + plot.h + 26);
    },
    hover(px, py, self) {
      if (px < self.plot.x || px > self.plot.x + self.plot.w) return null;
      const column = nearest(px, self);
      self.overlay((ctx) => {
        ctx.strokeStyle = self.palette.quiet;
        ctx.beginPath();
        ctx.moveTo(self.x(column), self.plot.y);
        ctx.lineTo(self.x(column), self.plot.y + self.plot.h);
        ctx.stroke();
      });
      return [`step ${doc.steps[column]}`, `mean of all ranks: ${msUnit(means('breakdown.total_us')?.of_steps[column])}`,
        ...longest(column), ...right.map(([path, values]) => `mean ${COLUMNS[path][0].toLowerCase()}: ${msUnit(values[column])}`),
        'click: timeline of this step'].join('\n');
    },
    click(px, py, self) {
      if (px >= self.plot.x && px <= self.plot.x + self.plot.w) location.hash = `#timeline/step-${doc.steps[nearest(px, self)]}`;
    },
    step: { count: () => count, place: (i, self) => [self.x(i), self.plot.y + self.plot.h / 2] },
  });
  function longest(column) {
    let row = -1;
    totals.forEach((values, i) => {
      if ((values[column] ?? null) !== null && (row < 0 || values[column] > totals[row][column])) row = i;
    });
    return row < 0 ? [] : [`longest: ${msUnit(totals[row][column])} (${rankName(row)})`];
  }
  body.append(legend([['total of each rank (left)', TIMES_COLOURS.total],
    ...(blamedRanks.size && blamedRanks.size <= 16 ? [['total of the ranks at fault (left)', 'var(--bad)']] : []),
    ...right.map(([path]) => [`mean ${COLUMNS[path][0].toLowerCase()} (right)`, colour[path]])]), view.element);
  if (!right.length) body.append(note('The trace has no communication, so the right axis is absent.'));
  view.draw();
}
