// Sections of the page: each is drawn when it comes near the window, or is printed. Routes are fragments of the address.
const STEP_PARTS = ['breakdown.interval_us', 'breakdown.forward_backward_us', 'breakdown.tail_us'];
const STEP_COLUMNS = ['breakdown.total_us', ...STEP_PARTS, 'breakdown.data_loader_us', 'breakdown.save_checkpoint_us', 'breakdown.idle_us'];
const OVERLAP_PARTS = ['overlap.computation_us', 'overlap.communication_alone_us'];
const OVERLAP_COLUMNS = [...OVERLAP_PARTS, 'overlap.stage_us', 'overlap.receive_alone_us', 'overlap.collective_alone_us', 'overlap.overlapped_us'];

function breakdownSection(body, label, columns, parts, missing) {
  if (present(columns).length === 0) body.append(emptyView(missing));
  else body.append(breakdownView({ label, paths: columns, stacked: present(parts).length ? parts : columns.slice(0, 1), stageFilter: true }));
}
// [id, title, what it shows and how to read it, function that fills it]
const SECTIONS = [
  ['overview', 'Verdict', null, overview],
  ['steps', 'Step trace', 'Interval: input pipeline of the host. Forward and backward: the device. Tail: gradient synchronization and optimizer.',
    (body) => breakdownSection(body, 'Step trace', STEP_COLUMNS, STEP_PARTS, 'The trace has no step times: no step was marked, or no rank has a complete step.')],
  ['overlap', 'Overlap', 'Computation is the step without communication alone. Stage is the step without receive alone, which is the pipeline bubble.',
    (body) => breakdownSection(body, 'Overlap', OVERLAP_COLUMNS, OVERLAP_PARTS, 'Overlap needs spans of computation and communication, and the trace does not have both in a step.')],
  ['communication', 'Communication', 'A rank that waits little is the one for which the others wait.', communicationView],
  ['timeline', 'Timeline', null, timelineView],
  ['pipeline', 'Pipeline', null, pipelineView],
  ['kernels', 'Kernels', 'Of devices; of CPUs if no rank has a device. A stream waits for the host if the call that launched its next kernel came too late.', kernelsView],
  ['heat', 'FLOPs and memory', 'One cell per rank, by host. Click a cell for the page of the rank. Ranks at fault have a blue frame.', heatView],
  ['times', 'Time overview', 'Click a step for its timeline.', timesView],
  ['critical', 'Critical path', null, criticalView],
  ['incidents', 'Incidents', null, incidentsView],
  ['what-if', 'What if', 'How much faster the job would run without one cause, by a model of the dependencies in a step.', whatIfView],
  ['hints', 'Hints', null, hintsView],
  ['limits', 'Limits', 'Published limits of the reference tools, and whether they apply to this report.', limitsView],
  ['clocks', 'Clocks', null, clocksView],
  ['missing', 'Missing parts', null, missingView],
].map(([id, title, lead, fill]) => ({ id, title, lead, fill, element: null, body: null }));

const main = document.getElementById('main');
const nav = document.getElementById('nav');
const whole = h('div');
const single = h('div');
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) fill(SECTIONS.find((section) => section.element === entry.target));
}, { rootMargin: '300px' });

function fill(section) {
  if (section.body) return;
  section.body = h('div');
  section.element.append(section.body);
  section.element.classList.remove('waiting');
  observer.unobserve(section.element);
  const began = performance.now();
  try {
    section.fill(section.body);
    section.restore?.();
  } catch (error) {
    // A view that fails must not take the others with it.
    section.body.replaceChildren(emptyView(`This view could not be drawn: ${error.message}`));
    console.error(error);
  }
  section.element.style.minHeight = '';
  section.element.dataset.filledMs = String(Math.round(performance.now() - began));
}
function build() {
  for (const section of SECTIONS) {
    section.element = h('section', { id: section.id, class: 'waiting', 'aria-labelledby': `${section.id}-title` },
      h('h2', { id: `${section.id}-title`, tabindex: '-1' }, section.title), section.lead && h('p', { class: 'lead' }, section.lead));
    whole.append(section.element);
    nav.append(h('a', { href: `#${section.id}` }, section.title));
  }
  nav.append(rankPicker());
  document.getElementById('head').append(h('h1', null, doc.title || 'Run without a name'), themeButton(),
    h('button', { type: 'button', onclick: () => print() }, 'Print'));
  main.append(whole, single);
  fill(SECTIONS[0]);
  SECTIONS.slice(1).forEach((section) => observer.observe(section.element));
}
function rankPicker() {
  const input = h('input', { type: 'text', inputmode: 'numeric', 'aria-label': 'Page of the rank with this number', placeholder: 'rank' });
  input.style.width = '72px';
  return h('form', { class: 'tools', onsubmit: (event) => {
    event.preventDefault();
    if (input.value.trim() !== '') location.hash = `#rank-${Number(input.value)}`;
  } }, input, h('button', { type: 'submit' }, 'Open'));
}

function route() {
  hideTip();
  const [target, ...parts] = decodeURIComponent(location.hash.slice(1)).split('/');
  const rank = /^rank-(\d+)$/.exec(target);
  whole.hidden = Boolean(rank);
  single.hidden = !rank;
  dropRankPage();
  if (rank) {
    openRankPage(Number(rank[1]));
    scrollTo(0, 0);
  }
  const section = SECTIONS.find((one) => one.id === target);
  if (section) {
    fill(section);
    arrive(section.element);
    if (section.id === 'timeline') timelineRoute(parts);
    document.getElementById(`${section.id}-title`).focus({ preventScroll: true });
  }
  for (const link of nav.querySelectorAll('a')) link.setAttribute('aria-current', String(link.hash === `#${target}`));
}
// Sections above the target may be drawn during the jump, and move it: the jump is repeated after them.
function arrive(element) {
  element.scrollIntoView({ behavior: 'instant' });
  requestAnimationFrame(() => requestAnimationFrame(() => element.scrollIntoView({ behavior: 'instant' })));
}
// The charts and tables of a rank's page are dropped with it, so that printing does not draw them again.
let beforeRank = null;
function openRankPage(rank) {
  beforeRank = printable.length;
  single.append(rankPage(rank));
}
function dropRankPage() {
  if (beforeRank === null) return;
  printable.length = beforeRank;
  beforeRank = null;
  single.replaceChildren();
  for (const one of allCharts) if (!one.element.isConnected) allCharts.delete(one);
}

function themeButton() {
  const dark = matchMedia('(prefers-color-scheme: dark)');
  let chosen = null;
  const apply = () => {
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? 'dark' : 'light');
    for (const one of allCharts) if (one.element.isConnected) one.draw();
  };
  dark.addEventListener('change', apply);
  apply();
  return h('button', { type: 'button', id: 'theme', onclick: () => {
    chosen = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
    apply();
  } }, 'Light / dark');
}

// Printing: all sections are drawn, light, at the width of the paper.
let themeBefore = null;
addEventListener('beforeprint', () => {
  if (themeBefore !== null) return;
  themeBefore = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = 'light';
  if (single.hidden) SECTIONS.forEach(fill);
  printable.forEach((prepare) => prepare(true));
});
addEventListener('afterprint', () => {
  if (themeBefore === null) return;
  document.documentElement.dataset.theme = themeBefore;
  themeBefore = null;
  printable.forEach((prepare) => prepare(false));
});

build();
addEventListener('hashchange', route);
if (location.hash.length > 1) route();
document.documentElement.dataset.readyMs = String(Math.round(performance.now()));
