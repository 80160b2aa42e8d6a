// Incidents, what-if, critical path, hints, limits, clocks and missing parts.
function incidentsView(body) {
  if (doc.incidents.length === 0) {
    body.append(emptyView('No incident was recorded: either none occurred, or the run had no supervisor that records incidents.'));
    return;
  }
  const starts = doc.breakdown.start_us.flat().filter((value) => value !== null);
  const moments = doc.incidents.map((incident) => incident.at_us);
  const bound = (pick) => starts.concat(moments).reduce((a, b) => pick(a, b));
  const whole = { x0: bound(Math.min), x1: Math.max(bound(Math.max), bound(Math.min) + 1), y0: 0, y1: 1 };
  const near = (px, self) => doc.incidents.filter((incident) => Math.abs(self.x(incident.at_us) - px) < 6);
  const view = chart({
    label: 'Incidents on the time axis', height: 84, margin: { l: 20, r: 20, t: 14, b: 26 }, brush: 'x', extent: () => whole, origin: timeOrigin,
    draw(self) {
      const { ctx, plot, palette } = self;
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, 0, self.width, self.height);
      ctx.fillStyle = palette.line;
      ctx.fillRect(plot.x, plot.y + plot.h - 1, plot.w, 1);
      for (const incident of doc.incidents) {
        if (incident.at_us < self.view.x0 || incident.at_us > self.view.x1) continue;
        ctx.fillStyle = palette.bad;
        ctx.beginPath();
        ctx.moveTo(self.x(incident.at_us), plot.y + plot.h);
        ctx.lineTo(self.x(incident.at_us) - 6, plot.y + plot.h - 22);
        ctx.lineTo(self.x(incident.at_us) + 6, plot.y + plot.h - 22);
        ctx.fill();
      }
      timeAxis(self);
    },
    hover: (px, py, self) => near(px, self).map((incident) => `${moment(incident.at_us)}\n${incident.sentence}`).join('\n') || null,
    step: { count: () => doc.incidents.length, place: (i, self) => [self.x(doc.incidents[i].at_us), self.plot.y + self.plot.h - 12] },
  });
  body.append(view.element);
  for (const incident of doc.incidents) {
    body.append(h('div', { class: 'blame' }, h('h3', null, `${incident.class}: ${incident.suspect}`),
      h('p', null, incident.sentence), note(moment(incident.at_us)), evidenceTable(incident.evidence)));
  }
  view.draw();
}

function whatIfView(body) {
  const model = doc.what_if;
  if (!model) {
    body.append(emptyView('The what-if model needs the operations of every rank in each step, and the trace does not have them.'));
    return;
  }
  body.append(facts([['Measured', msUnit(model.measured_us)], ['By the model', msUnit(model.modelled_us)], ['Without any straggler', msUnit(model.ideal_us)],
    ['Slowdown by all stragglers', `${plain(model.slowdown)} times`]]));
  body.append(plainTable('Scenarios', [['Without'], ['Ranks'], ['Time of the job (ms)', true], ['Times as fast', true], ['Share of the slowdown', true]],
    model.scenarios.map((scenario) => [scenario.without, rankRanges(scenario.ranks), ms(scenario.time_us), scenario.speedup.toFixed(2), percent(scenario.share)])));
}

function criticalView(body) {
  const paths = doc.critical_path.filter((path) => path.segments.length > 0);
  if (paths.length === 0) {
    body.append(emptyView('No critical path was computed: it needs steps, and operations that are matched between the ranks.'));
    return;
  }
  const begin = (path) => path.segments[0].start_us;
  const length = (path) => path.segments.reduce((sum, segment) => sum + segment.duration_us, 0);
  const whole = { x0: 0, x1: Math.max(1, ...paths.map(length)), y0: 0, y1: paths.length };
  const at = (px, py, self) => {
    const path = paths[Math.floor(self.unY(py))];
    const moment = self.unX(px) + (path ? begin(path) : 0);
    return path && py > self.plot.y ? { path, segment: path.segments.find((one) => moment >= one.start_us && moment <= one.start_us + one.duration_us) } : null;
  };
  const view = chart({
    label: 'Critical path of each step: one line per step', height: Math.max(90, Math.min(480, paths.length * 22)) + 40, margin: { l: 80, b: 28 }, brush: 'xy',
    extent: () => whole,
    draw(self) {
      const { ctx, plot, palette } = self;
      const pitch = plot.h / (self.view.y1 - self.view.y0);
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, 0, self.width, self.height);
      ctx.save();
      ctx.beginPath();
      ctx.rect(0, plot.y - 6, self.width, plot.h + 12);
      ctx.clip();
      const every = Math.max(1, Math.ceil(13 / pitch));
      paths.forEach((path, line) => {
        if (line < self.view.y0 || line >= self.view.y1) return;
        ctx.fillStyle = palette.quiet;
        ctx.textAlign = 'right';
        if (line % every === 0) ctx.fillText(`step ${path.step}`, plot.x - 8, self.y(line + 0.5));
        for (const segment of path.segments) {
          const [a, b] = [self.x(segment.start_us - begin(path)), self.x(segment.start_us + segment.duration_us - begin(path))];
          if (b < plot.x || a > plot.x + plot.w) continue;
          const [left, width] = [Math.max(plot.x, a), Math.max(0.5, Math.min(b, plot.x + plot.w) - Math.max(plot.x, a))];
          ctx.fillStyle = segment.name === '' ? palette.grid : kindColour(segment.kind);
          ctx.fillRect(left, self.y(line) + 1, width, Math.max(1, pitch - 2));
          if (width > 46 && pitch > 13) {
            ctx.fillStyle = '#1b2128';
            ctx.textAlign = 'left';
            if (segment.name !== '') ctx.fillText(`rank ${segment.rank}`, left + 4, self.y(line + 0.5));
          }
        }
      });
      ctx.restore();
      timeAxis(self);
    },
    hover(px, py, self) {
      const found = at(px, py, self);
      if (!found?.segment) return null;
      const { segment, path } = found;
      return `step ${path.step}, rank ${segment.rank}\n${segment.name === '' ? 'gap' : `${kindName(segment.kind)} ${segment.name}`}: ${msUnit(segment.duration_us)}\nat ${seconds(segment.start_us)}\nclick: timeline`;
    },
    click(px, py, self) {
      const found = at(px, py, self);
      if (found?.segment) location.hash = `#timeline/rank-${found.segment.rank}/step-${found.path.step}`;
    },
  });
  body.append(legend([...KINDS, ['gap', 'var(--grid)']]), view.element, note('Time since the start of each step. The path is the longest chain of operations that depend on '
    + 'each other: only a change on it makes the step shorter.'));
  view.draw();
}

function hintsView(body) {
  if (doc.hints.length === 0) {
    body.append(emptyView('No rule gave a hint: no value is beyond its threshold.'));
    return;
  }
  const { hints } = doc;
  body.append(dataGrid({ label: 'Hints', rows: hints.map((_, i) => i), open: (i) => {
    if (hints[i].rank !== null) location.hash = `#rank-${hints[i].rank}`;
  }, columns: [{ title: 'Rule', value: (i) => hints[i].rule, text: (i) => hints[i].rule },
    { title: 'Rank', number: true, value: (i) => hints[i].rank, text: (i) => plain(hints[i].rank) },
    { title: 'Step', number: true, value: (i) => hints[i].step, text: (i) => plain(hints[i].step) },
    { title: 'Value', number: true, value: (i) => hints[i].value, text: (i) => plain(hints[i].value) },
    { title: 'Mean or threshold', number: true, value: (i) => hints[i].mean, text: (i) => plain(hints[i].mean) },
    { title: 'Unit', value: (i) => hints[i].unit, text: (i) => hints[i].unit },
    { title: 'Hint', value: (i) => hints[i].text, text: (i) => hints[i].text }] }));
}

function limitsView(body) {
  if (doc.limits.length === 0) {
    body.append(emptyView('The analysis listed no limits.'));
    return;
  }
  body.append(plainTable('Limits of the reference tools', [['Limit'], ['Applies here'], ['Note']],
    doc.limits.map((limit) => [limit.limit, limit.applies ? 'yes' : 'no', limit.note])));
}

function clocksView(body) {
  const { clocks } = doc;
  if (clocks.sentence) body.append(h('p', null, clocks.sentence));
  if (clocks.offset_us.length === 0) {
    body.append(emptyView('The clocks were not aligned: the ranks share no collective.'));
    return;
  }
  const value = (list, row) => list[row] ?? null;
  body.append(dataGrid({ label: 'Alignment of the clocks', rows: doc.ranks.map((_, row) => row), sort: { column: 3, down: true },
    columns: [{ title: 'Rank', number: true, value: (row) => doc.ranks[row].rank, text: (row) => String(doc.ranks[row].rank) },
      { title: 'Host', value: (row) => doc.ranks[row].host, text: (row) => doc.ranks[row].host ?? NONE },
      { title: 'Offset (µs)', number: true, value: (row) => value(clocks.offset_us, row), text: (row) => plain(value(clocks.offset_us, row)) },
      { title: 'Residual (µs)', number: true, value: (row) => value(clocks.residual_us, row), text: (row) => plain(value(clocks.residual_us, row)) }] }));
}

function missingView(body) {
  if (doc.missing.length === 0) body.append(emptyView('Nothing is missing: the trace has all parts that the analysis uses.'));
  else body.append(h('ul', null, doc.missing.map((sentence) => h('li', null, sentence))));
}
