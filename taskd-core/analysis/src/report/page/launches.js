// Launches, queues of streams, bandwidth of copies, and annotations: below the kernels, by the chosen rules and rank.
const integer = (title, value) => ({ title, number: true, value, text: (row) => String(value(row)) });
const decimal = (title, value) => ({ title, number: true, value, text: (row) => plain(value(row)) });
const rankColumn = integer('Rank', (row) => row.rank);
const spreadColumns = (title, unit, of) => [['mean', 'mean'], ['median', 'median'], ['75 %', 'upper_quartile'], ['longest', 'max']]
  .map(([name, field]) => decimal(`${title}, ${name} (${unit})`, (row) => of(row)[field]));
const HOST_TABLES = [
  { field: 'launches', label: 'Launches', text: 'Calls that launched kernels: their time, that of the kernels, and the delay from the end of a call to the start of its kernel.',
    columns: [rankColumn, integer('Launches', (row) => row.call_us.count), ...spreadColumns('Call', 'µs', (row) => row.call_us),
      ...spreadColumns('Kernel', 'µs', (row) => row.kernel_us), ...spreadColumns('Delay', 'µs', (row) => row.delay_us),
      integer('Kernels shorter than their call', (row) => row.short_kernels), integer('Calls above 50 µs', (row) => row.slow_calls),
      integer('Delays above 100 µs', (row) => row.late_kernels)] },
  { field: 'queues', label: 'Queues of streams', text: 'Operations that were launched and have not begun, after each change.',
    columns: [rankColumn, integer('Stream', (row) => row.stream), integer('Changes', (row) => row.lengths.count), decimal('Mean', (row) => row.lengths.mean),
      decimal('Median', (row) => row.lengths.median), decimal('Longest', (row) => row.lengths.max),
      { title: 'Full (ms)', number: true, value: (row) => row.full_us, text: (row) => ms(row.full_us) }] },
  { field: 'copies', label: 'Copies of memory', text: 'The bandwidth of the copies of a kind that run together.',
    columns: [rankColumn, { title: 'Kind', value: (row) => row.kind, text: (row) => row.kind }, integer('Copies', (row) => row.copies), integer('Bytes', (row) => row.bytes),
      { title: 'Busy (ms)', number: true, value: (row) => row.busy_us, text: (row) => ms(row.busy_us) },
      decimal('Mean (GB/s)', (row) => row.gb_per_s.mean), decimal('Median (GB/s)', (row) => row.gb_per_s.median), decimal('Highest (GB/s)', (row) => row.gb_per_s.max)] },
  { field: 'annotations', label: 'Annotations', text: 'Ranges that the program or its framework named, on the host and on the device.',
    columns: [rankColumn, { title: 'Place', value: (row) => row.class, text: (row) => row.class }, null, integer('Ranges', (row) => row.count),
      ...KERNEL_COLUMNS.map(([title, field, text]) => ({ title, number: true, value: (row) => row[field], text: (row) => text(row[field]) }))] },
];

// Returns the elements, and what shows the rows of `state.rules` and `state.rank`. A table without rows by any rules is left out.
function launchTables(state) {
  const name = (row) => state.rules.names[row.name];
  const tables = HOST_TABLES.filter(({ field }) => doc.kernels.rules.some((rules) => rules.host[field].length > 0));
  const parts = tables.map(({ field, label, text, columns }) => {
    const left = note('');
    const grid = dataGrid({ label, rows: [], mark: (row) => blamedRanks.has(row.rank),
      columns: columns.map((column) => column ?? { title: 'Name', value: name, text: name }) });
    const show = () => {
      grid.setRows(state.rules.host[field].filter((row) => state.rank === '' || String(row.rank) === state.rank));
      const count = state.rules.host[`${field}_left_out`] ?? 0;
      left.textContent = count > 0 ? `${count} rows are left out.` : '';
    };
    return { elements: [h('h3', null, label), note(text), grid, left], show };
  });
  return { parts: parts.flatMap((part) => part.elements), show: () => parts.forEach((part) => part.show()) };
}
