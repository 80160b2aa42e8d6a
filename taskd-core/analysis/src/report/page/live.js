// The page of a run that goes on: its server sends other figures, and the page shows them without losing what the reader
// has chosen. `revision` numbers the figures, `status` describes the reading of the run.
const RETRY_MS = 2000;
const SILENT_MS = 20000; // several times the interval at which the server sends its status
const live = { ...JSON.parse(document.getElementById('live-status').textContent), lost: false, paused: false, next: null, source: null, heard: 0 };
const liveState = h('span', { role: 'status' });
const liveAges = h('span', { 'aria-hidden': 'true' }); // changes every second: not for screen readers
const liveLine = h('p', { id: 'live' }, liveState, liveAges);

function liveStatus(status) {
  Object.assign(live, status, { since: performance.now() });
  live.heard = performance.now();
  showLive();
}
function age(ms) {
  const whole = Math.max(0, Math.round(ms / 1000));
  return whole < 120 ? `${whole} s` : `${Math.round(whole / 60)} min`;
}
// Returns the reason why newer figures are not shown yet, or null.
function held() {
  if (live.paused) return 'paused';
  if (live.busy) return 'the pointer or a list is in use';
  if (document.getSelection()?.isCollapsed === false && main.contains(document.getSelection().anchorNode)) return 'text is selected';
  return themeBefore !== null || document.hidden ? 'the page is printed or hidden' : null;
}
function showLive() {
  const passed = performance.now() - live.since;
  const why = live.next && held();
  const state = live.lost && !live.has_ended ? 'lost' : live.error ? 'failing' : why ? 'waiting' : live.has_ended ? 'ended' : 'live';
  const said = { lost: 'Connection lost, retrying.', failing: `The run could not be read: ${live.error}.`, waiting: `Newer figures wait: ${why}.`,
    ended: 'The run has ended.', live: 'Live.' }[state];
  if (liveState.textContent !== said) liveState.textContent = said;
  liveLine.dataset.state = state;
  liveLine.dataset.revision = String(live.revision);
  const read = new Date(Date.now() - live.age_ms - passed).toLocaleTimeString();
  liveAges.textContent = live.age_ms === null ? 'No figures yet.' : `Figures of ${read}, ${age(live.age_ms + passed)} ago.`
    + (state === 'failing' ? ` Failing for ${age(live.failing_ms + passed)}.` : '');
  const refused = Object.entries(live.refused).filter(([, count]) => count > 0).map(([what, count]) => `${what.replaceAll('_', ' ')}: ${count}`);
  liveLine.title = [`The run is read at most every ${age(live.every_ms)}; reading took ${live.took_ms} ms.`, ...(refused.length ? ['Refused:', ...refused] : [])].join('\n');
}

function connect() {
  const source = new EventSource(`events?revision=${live.next?.revision ?? live.revision}`);
  live.source = source;
  let spans = null; // of this connection: the figures that belong to it follow
  live.heard = performance.now();
  source.addEventListener('status', (event) => {
    live.lost = false;
    liveStatus(JSON.parse(event.data));
  });
  source.addEventListener('timeline', (event) => {
    spans = event.data;
    live.heard = performance.now();
  });
  source.addEventListener('analysis', (event) => {
    if (spans === null) return; // the timeline was lost with an earlier connection
    live.next = { revision: Number(event.lastEventId), analysis: event.data, timeline: spans };
    spans = null;
    live.heard = performance.now();
    applyNext();
  });
  source.onerror = () => lose(source);
}
// The browser's own retry ends at the first answer other than 200, for example when the server has no room.
function lose(source) {
  source.close();
  if (source !== live.source) return; // another connection has taken its place
  live.source = null;
  live.lost = true;
  showLive();
  if (!live.has_ended) setTimeout(connect, RETRY_MS);
}
function applyNext() {
  if (!live.next || held()) {
    showLive();
    return;
  }
  const { revision, analysis, timeline: spans } = live.next;
  live.next = null;
  show(analysis, spans);
  live.revision = revision;
  showLive();
}

// Shows other figures. Views near the window are drawn again, the others when they come near it.
function show(analysis, spans) {
  const anchor = [...main.querySelectorAll('section')].find((one) => one.getBoundingClientRect().bottom > 60);
  const top = anchor?.getBoundingClientRect().top;
  const focus = keepFocus();
  const rank = single.hidden ? null : keepChoices(single);
  const scrolled = scrollY;
  const near = SECTIONS.filter((section) => {
    if (!section.body) return false;
    const box = section.element.getBoundingClientRect();
    const kept = keepChoices(section.body);
    section.restore = () => {
      section.restore = null;
      restoreChoices(section.body, kept);
    };
    const isUsed = section.element.contains(document.activeElement);
    section.element.style.minHeight = `${section.element.offsetHeight || 420}px`; // 420: as before it was drawn
    section.body.remove();
    section.body = null;
    section.element.classList.add('waiting');
    observer.observe(section.element);
    return !rank && (isUsed || box.bottom > -300 && box.top < innerHeight + 300);
  });
  if (rank) dropRankPage();
  printable.length = 0;
  allCharts.clear();
  marey.chart = null;
  setDocument(analysis, spans);
  document.title = doc.title;
  document.querySelector('#head h1').textContent = doc.title || 'Run without a name';
  near.forEach(fill);
  if (rank) {
    openRankPage(Number(/^#rank-(\d+)/.exec(location.hash)?.[1]));
    restoreChoices(single, rank);
    scrollTo({ top: scrolled, behavior: 'instant' });
  } else if (anchor) scrollBy({ top: anchor.getBoundingClientRect().top - top, behavior: 'instant' });
  restoreFocus(focus);
}

// What the reader has chosen in a view: lists, fields, zooms and the order of tables, by name.
const nameOf = (element) => element.getAttribute('title') ?? element.ariaLabel ?? (element.closest('label')?.firstChild ?? element).textContent;
function named(body, selector) {
  const seen = new Map();
  return [...body.querySelectorAll(selector)].map((element) => {
    const name = nameOf(element).replaceAll(/\d+/g, '#'); // such as the number of the slowest rank
    seen.set(name, (seen.get(name) ?? 0) + 1);
    return [`${element.tagName} ${name} ${seen.get(name)}`, element];
  });
}
function keepChoices(body) {
  return { fields: named(body, 'select, input').map(([key, element]) => [key, element.value]),
    views: named(body, '.chart, .grid').filter(([, element]) => element.keep).map(([key, element]) => [key, element.keep()]) };
}
function restoreChoices(body, { fields, views }) {
  for (const [key, value] of fields) {
    const element = new Map(named(body, 'select, input')).get(key); // an earlier choice may have replaced it
    if (!element || element.value === value) continue;
    if (element.tagName === 'SELECT' && ![...element.options].some((option) => option.value === value)) continue;
    element.value = value;
    element.dispatchEvent(new Event(element.tagName === 'SELECT' ? 'change' : 'input'));
  }
  const found = new Map(named(body, '.chart, .grid'));
  for (const [key, kept] of views) found.get(key)?.restore?.(kept);
}
const FOCUSABLE = 'a, button, select, input, [tabindex]';
function keepFocus() {
  const at = document.activeElement;
  if (!at || !main.contains(at)) return null;
  const key = named(main, FOCUSABLE).find(([, element]) => element === at)?.[0];
  return key && { key, from: at.selectionStart, to: at.selectionEnd };
}
function restoreFocus(focus) {
  const element = focus && new Map(named(main, FOCUSABLE)).get(focus.key);
  if (!element) return;
  element.focus({ preventScroll: true });
  if (typeof focus.from === 'number') element.setSelectionRange(focus.from, focus.to);
}

function startLive() {
  const pause = h('button', { type: 'button', 'aria-pressed': 'false', onclick: () => {
    live.paused = !live.paused;
    pause.setAttribute('aria-pressed', String(live.paused));
    applyNext();
  } }, 'Pause updates');
  document.querySelector('#head h1').after(liveLine, pause);
  const uses = (value) => () => {
    live.busy = value;
  };
  addEventListener('pointerdown', uses(true), true);
  for (const end of ['pointerup', 'pointercancel']) {
    addEventListener(end, (event) => {
      if (event.target.tagName !== 'SELECT' && event.target.tagName !== 'OPTION') live.busy = false; // a list stays open
    }, true);
  }
  for (const end of ['change', 'focusout']) addEventListener(end, uses(false), true);
  addEventListener('keydown', (event) => {
    live.busy = event.target.tagName === 'SELECT' && (event.key === ' ' || event.altKey); // opens the list
  }, true);
  setInterval(() => {
    if (!live.lost && performance.now() - live.heard > SILENT_MS) lose(live.source);
    else applyNext();
  }, 1000);
  liveStatus({});
  connect();
}
startLive();
