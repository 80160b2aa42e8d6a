// The document of the analysis, and how its figures are written. Nothing is computed here: the figures are the document's.
let doc = null;
let rankRow; // row of each rank
let stepColumn; // column of each step
let blamedRanks;
let hasStages;
let rankOrder; // ranks in the order of the timeline: stage by stage, so that neighbours of a stage are adjacent

// What is derived from the document once: a live page receives others.
const derived = [];
function derive(compute) {
  derived.push(compute);
  if (doc) compute();
}
function setDocument(analysis, timelineText) {
  doc = JSON.parse(analysis);
  timeline.text = timelineText;
  timeline.parsed = null;
  stageOf.table = null;
  for (const compute of derived) compute();
}
derive(() => {
  rankRow = new Map(doc.ranks.map((info, row) => [info.rank, row]));
  stepColumn = new Map(doc.steps.map((step, column) => [step, column]));
  blamedRanks = new Set(doc.verdict.blamed.flatMap((blame) => blame.ranks));
  hasStages = doc.pipeline.stages.length > 1 || new Set(doc.ranks.map((info) => info.stage)).size > 1;
  rankOrder = doc.ranks.map((_, row) => row)
    .sort((a, b) => (stageOf(a) ?? 0) - (stageOf(b) ?? 0) || doc.ranks[a].rank - doc.ranks[b].rank);
});
setDocument(document.getElementById('analysis').textContent, null);

function stageOf(row) {
  if (!stageOf.table) {
    stageOf.table = doc.ranks.map((info) => info.stage);
    for (const stage of doc.pipeline.stages) {
      for (const rank of stage.ranks) {
        if (rankRow.has(rank)) stageOf.table[rankRow.get(rank)] ??= stage.stage;
      }
    }
  }
  return stageOf.table[row];
}

// Kinds of spans, with the colours of a Marey timeline.
const KINDS = [
  ['compute', '#74ba62'], ['collective', '#e6882e'], ['send', '#bf73d6'], ['receive', '#4192d3'],
  ['copy', '#c2ab3a'], ['data loader', '#d9626d'], ['checkpoint', '#8c6d4f'], ['other', '#8f9aa8'],
];
const kindName = (kind) => (KINDS[kind] ?? KINDS[7])[0];
const kindColour = (kind) => (KINDS[kind] ?? KINDS[7])[1];

// Tables of the document by path, such as `breakdown.total_us`; an empty table is absent.
function table(path) {
  const [group, name] = path.split('.');
  const rows = doc[group]?.[name];
  return rows && rows.some((row) => row.some((value) => value !== null)) ? rows : null;
}
function means(path) {
  return doc.summary.means[path] ?? null;
}
const COLUMNS = {
  'breakdown.total_us': ['Step', '#789395'],
  'breakdown.interval_us': ['Interval', '#5a78c9'],
  'breakdown.forward_backward_us': ['Forward + backward', '#74ba62'],
  'breakdown.tail_us': ['Tail', '#e6882e'],
  'breakdown.data_loader_us': ['Data loader', '#d9626d'],
  'breakdown.save_checkpoint_us': ['Checkpoint', '#8c6d4f'],
  'breakdown.idle_us': ['Idle', '#b4bcc6'],
  'overlap.computation_us': ['Computation', '#74ba62'],
  'overlap.communication_alone_us': ['Communication alone', '#e6882e'],
  'overlap.stage_us': ['Stage', '#789395'],
  'overlap.receive_alone_us': ['Receive alone', '#4192d3'],
  'overlap.collective_alone_us': ['Collective alone', '#c2ab3a'],
  'overlap.overlapped_us': ['Overlapped', '#8fb5a6'],
  'communication.transfer_us': ['Transfer', '#e6882e'],
  'communication.wait_us': ['Wait', '#5a78c9'],
};
const present = (paths) => paths.filter((path) => table(path));

// Figures as text. `ms` has three decimals: exactly the microseconds of the document.
const NONE = '–';
const ms = (us) => (us === null || us === undefined ? NONE : (us / 1000).toFixed(3));
const msUnit = (us) => (us === null || us === undefined ? NONE : `${ms(us)} ms`);
function scaled(value, base, units) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  while (Math.abs(value) >= base && unit < units.length - 1) {
    value /= base;
    unit += 1;
  }
  return `${unit === 0 ? Math.round(value * 1000) / 1000 : value.toFixed(2)} ${units[unit]}`;
}
const bytes = (value) => scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']);
const rate = (value) => scaled(value, 1000, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s']);
const flop = (value) => scaled(value, 1000, ['FLOP', 'kFLOP', 'MFLOP', 'GFLOP', 'TFLOP', 'PFLOP', 'EFLOP']);
const flops = (value) => scaled(value, 1000, ['FLOP/s', 'kFLOP/s', 'MFLOP/s', 'GFLOP/s', 'TFLOP/s', 'PFLOP/s', 'EFLOP/s']);
const plain = (value) => (value === null || value === undefined ? NONE
  : Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(6))));
const percent = (share) => (share === null || share === undefined ? NONE : `${(100 * share).toFixed(1)} %`);
const seconds = (us) => `${(us / 1e6).toFixed(6).replace(/0{1,3}$/, '')} s`;
function moment(us) {
  if (doc.began_unix_ns === null) return seconds(us);
  const date = new Date(doc.began_unix_ns / 1e6 + us / 1e3);
  return `${seconds(us)} (${isNaN(date) ? 'no calendar time' : date.toISOString()})`;
}
function rankName(row) {
  const info = doc.ranks[row];
  return info.host ? `rank ${info.rank} on ${info.host}` : `rank ${info.rank}`;
}

// The timeline's spans as columns of numbers. It is the largest part of the document, and is parsed at its first use.
function timeline() {
  if (timeline.parsed) return timeline.parsed;
  const read = JSON.parse(timeline.text ?? document.getElementById('timeline-data').textContent);
  timeline.text = null;
  let begin = Infinity;
  let end = -Infinity;
  const ranks = doc.ranks.map((_, row) => {
    const spans = read.spans[row] ?? [];
    const count = spans.length / 5;
    const columns = {
      count, start: new Float64Array(count), length: new Float64Array(count),
      kind: new Uint8Array(count), name: new Uint32Array(count), match: new Uint32Array(count), longest: 0,
    };
    const { start, length, kind, name, match } = columns;
    for (let i = 0, at = 0; i < count; i += 1, at += 5) {
      start[i] = spans[at];
      length[i] = spans[at + 1];
      kind[i] = spans[at + 2];
      name[i] = spans[at + 3];
      match[i] = spans[at + 4];
      if (length[i] > columns.longest) columns.longest = length[i];
      if (start[i] < begin) begin = start[i];
      if (start[i] + length[i] > end) end = start[i] + length[i];
    }
    read.spans[row] = null; // frees the parsed form while the columns grow
    return columns;
  });
  timeline.parsed = { names: read.names, ranks, memory: read.memory, flop: read.flop, leftOut: read.left_out, begin, end };
  return timeline.parsed;
}
// Index of the first span of a rank that may reach the moment.
function firstSpan(columns, at) {
  let low = 0;
  let high = columns.count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (columns.start[middle] < at - columns.longest) low = middle + 1;
    else high = middle;
  }
  return low;
}
// Zero of the axes: a zoom is kept relative to 1970, or to step 0, because another document may begin later.
const timeOrigin = () => (doc.began_unix_ns ?? 0) / 1000;
const stepOrigin = () => doc.steps[0] ?? 0;
// Start and end of a step over all ranks, or null.
function stepWindow(step) {
  const column = stepColumn.get(step);
  let from = Infinity;
  let to = -Infinity;
  doc.ranks.forEach((_, row) => {
    const start = doc.breakdown.start_us[row]?.[column] ?? null;
    if (start === null) return;
    from = Math.min(from, start);
    to = Math.max(to, start + (doc.breakdown.total_us[row]?.[column] ?? 0));
  });
  return from < to ? [from, to] : null;
}
