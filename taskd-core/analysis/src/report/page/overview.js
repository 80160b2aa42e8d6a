// The beginning of the page: the verdict in one sentence, its evidence, and the ways to the views that show it.
let announced = null; // a live page announces its verdict when that changes, not with all figures
function overview(body) {
  const { verdict, summary } = doc;
  body.append(h('div', { class: verdict.is_healthy ? 'verdict healthy' : 'verdict', role: announced === doc.verdict.sentence ? null : 'alert' },
    h('span', { class: 'kind' }, verdict.is_healthy ? 'No fault found' : 'Fault found'),
    h('p', null, verdict.sentence || 'The analysis gave no verdict.')));
  announced = verdict.sentence;
  const worst = verdict.blamed[0];
  const jump = (text, hash, main) => h('button', { type: 'button', class: main ? 'main' : null, onclick: () => {
    location.hash = hash;
  } }, text);
  body.append(h('div', { class: 'tools' },
    summary.slowest_rank !== null && jump(`Timeline of the slowest rank (${summary.slowest_rank})`, timelineHash(summary.slowest_rank), true),
    summary.fastest_rank !== null && jump(`Timeline of the fastest rank (${summary.fastest_rank})`, `#timeline/rank-${summary.fastest_rank}`),
    jump('Communication', '#communication'),
    worst?.ranks.length > 0 && jump(`Page of rank ${worst.ranks[0]}`, `#rank-${worst.ranks[0]}`)));
  if (doc.communication.steps < doc.steps.length) {
    body.append(h('p', { class: 'warning', id: 'fewer-steps' }, `Communication was collected for ${doc.communication.steps} of the `
      + `${doc.steps.length} steps: figures of communication and links are for these steps only.`));
  }
  if (doc.missing.length > 0) {
    body.append(h('p', { class: 'warning' }, `The trace is incomplete (${doc.missing.length} missing): see `,
      h('a', { href: '#missing' }, 'missing parts'), '.'));
  }
  body.append(...[agreements(), ...verdict.blamed.map(blameView)].filter(Boolean));
  if (verdict.notes.length > 0) {
    body.append(h('h3', null, 'Slow-downs without a component at fault'), h('ul', { id: 'notes' }, verdict.notes.map((text) => h('li', null, text))));
  }
  if (verdict.judged_by) body.append(h('p', { id: 'judged-by' }, verdict.judged_by));
  const gain = doc.what_if?.scenarios[0];
  const hosts = new Set(doc.ranks.map((info) => info.host).filter(Boolean));
  body.append(facts([
    ['Ranks', String(doc.ranks.length)],
    ['Hosts', hosts.size ? String(hosts.size) : 'not in the trace'],
    ['Pipeline stages', String(Math.max(1, doc.pipeline.stages.length))],
    ['Steps', doc.steps.length ? `${doc.steps.length} (${doc.steps[0]} to ${doc.steps[doc.steps.length - 1]})` : 'none'],
    ['Mean step', msUnit(means('breakdown.total_us')?.all)],
    ['Mean wait of a rank per step', msUnit(means('communication.wait_us')?.all)],
    gain && [`Without ${gain.without}`, `${gain.speedup.toFixed(2)} times as fast`],
    ['Incidents', String(doc.incidents.length)],
    ['Sources', doc.sources.join(', ') || 'unknown'],
    ['Began', doc.began_unix_ns === null ? 'unknown' : new Date(doc.began_unix_ns / 1e6).toISOString()],
  ]));
  body.append(note('The slowest rank is the one with the longest mean step without waiting for others, the fastest the one with the '
    + 'shortest. Usual way: this summary, then communication, then the timelines of the slowest and the fastest rank.'));
}
// One component at fault: since when, its figures beside those of its peers, what was ruled out, and what to do next.
function blameView(blame) {
  const since = blame.onset_step === null ? 'no onset known' : `since step ${blame.onset_step}`;
  const until = blame.until_step === null ? '' : ` until step ${blame.until_step}`;
  const list = (title, kind, items) => items.length > 0 && [h('h4', null, title), h(kind, null, items.map((text) => h('li', null, text)))];
  return h('div', { class: 'blame' },
    h('h3', null, `${blame.component}: ${blame.cause}`),
    h('p', null, [`Slowdown ${blame.slowdown_percent.toFixed(1)} %`, `confidence ${(blame.confidence_permille / 10).toFixed(1)} %`,
      since + until].join(', '), '. ',
    blame.began_us === null ? null : h('span', { class: 'began' }, `It began at ${moment(blame.began_us)}. `),
    blame.ranks.length > 0 && rankRow.has(blame.ranks[0]) && [h('a', { href: timelineHash(blame.ranks[0]) }, 'timeline'), ' '],
    blame.ranks.slice(0, 16).map((rank) => [rankLink(rank), ' ']),
    blame.ranks.length > 16 ? `and ${blame.ranks.length - 16} more` : null,
    blame.judged_by ? ` Judged by: ${blame.judged_by}.` : null),
    list('Next', 'ol', blame.next),
    evidenceTable(blame.evidence),
    blame.compared.length > 0 && [h('h4', null, `Suspects and peers: ${blame.compared_by}, median per step`),
      plainTable('Suspects and peers', [['Rank'], [''], ['Before (ms)', true], ['Since the onset (ms)', true], ['Wait since (ms)', true]],
        blame.compared.map((one) => [rankLink(one.rank), one.is_suspect ? 'suspect' : 'peer', ms(one.before_us), ms(one.since_us), ms(one.wait_us)]))],
    list('Other explanations', 'ul', blame.ruled_out.map((item) => item.text)));
}
// The supervisor's incidents beside the verdict.
function agreements() {
  const { agreements: compared } = doc.verdict;
  if (compared.length === 0) return null;
  return h('ul', { id: 'agreements' }, compared.map((one) => h('li', { class: one.agrees ? 'agrees' : 'disagrees' },
    one.text, ' ', h('a', { href: '#incidents' }, 'incidents'))));
}
// Where the timeline shows a rank best: at the onset of its fault, if that is known.
function timelineHash(rank) {
  const onset = doc.verdict.blamed.find((blame) => blame.ranks.includes(rank))?.onset_step ?? null;
  return onset === null || !stepColumn.has(onset) ? `#timeline/rank-${rank}` : `#timeline/rank-${rank}/step-${onset}`;
}
