// Busy and idle time of each device, and its kernels by name.
const RULES = { exact: 'exact: nanoseconds of the whole trace', hta: 'HTA: microseconds, usually without the last step' };
const DEVICE_COLUMNS = [['Range', 'range_us'], ['Busy', 'busy_us'], ['Idle', 'idle_us'], ['Computation', 'compute_us'], ['Communication', 'communication_us'],
  ['Memory', 'memory_us'], ['Overlap', 'overlap_us'], ['Wait for the host', 'host_wait_us'], ['Between kernels', 'kernel_wait_us'], ['Other waits', 'other_wait_us']];
const KERNEL_COLUMNS = [['Sum (ms)', 'sum_us', ms], ['Mean (µs)', 'mean_us', plain], ['Shortest (µs)', 'min_us', plain], ['Longest (µs)', 'max_us', plain],
  ['Deviation (µs)', 'deviation_us', plain]];

function kernelsView(body) {
  const { rules, differences } = doc.kernels;
  if (rules.length === 0) {
    body.append(emptyView('The trace has no kernels and no operators: PyTorch records kernels with ProfilerActivity.CUDA, Ascend in kernel_details.csv.'));
    return;
  }
  const state = { rules: rules[0], rank: '' };
  const name = (kernel) => state.rules.names[kernel.name];
  const rows = () => state.rules.kernels.filter((kernel) => state.rank === '' || String(kernel.rank) === state.rank);
  const devices = dataGrid({ label: 'Devices', rows: state.rules.devices, open: (device) => {
    location.hash = `#rank-${device.rank}`;
  }, mark: (device) => blamedRanks.has(device.rank), columns: [
    { title: 'Rank', number: true, value: (device) => device.rank, text: (device) => String(device.rank) },
    { title: 'Kernels', number: true, value: (device) => device.kernels, text: (device) => String(device.kernels) },
    ...DEVICE_COLUMNS.map(([title, field]) => ({ title: `${title} (ms)`, number: true, value: (device) => device[field], text: (device) => ms(device[field]) }))] });
  const kernels = dataGrid({ label: 'Kernels by name', rows: rows(), sort: { column: 4, down: true }, columns: [
    { title: 'Rank', number: true, value: (kernel) => kernel.rank, text: (kernel) => String(kernel.rank) },
    { title: 'Class', value: (kernel) => kernel.class, text: (kernel) => kernel.class },
    { title: 'Kernel', value: name, text: name },
    { title: 'Runs', number: true, value: (kernel) => kernel.count, text: (kernel) => String(kernel.count) },
    ...KERNEL_COLUMNS.map(([title, field, text]) => ({ title, number: true, value: (kernel) => kernel[field], text: (kernel) => text(kernel[field]) }))] });
  const left = note('');
  const host = launchTables(state);
  const show = () => {
    devices.setRows(state.rules.devices);
    kernels.setRows(rows());
    host.show();
    left.textContent = state.rules.left_out > 0 ? `${state.rules.left_out} rows with the shortest sums are left out.` : '';
  };
  const ranks = [['', 'all'], ...rules[0].devices.map((device) => [String(device.rank), String(device.rank)])];
  body.append(h('div', { class: 'tools' },
    rules.length > 1 && choice('Rules', rules.map((one) => [one.name, RULES[one.name] ?? one.name]), (name) => {
      state.rules = rules.find((one) => one.name === name);
      show();
    }, state.rules.name),
    choice('Kernels of rank', ranks, (rank) => {
      state.rank = rank;
      show();
    }, '')), devices, h('h3', null, 'Kernels by name'), kernels, left, ...host.parts);
  if (differences.length > 0) body.append(h('h3', null, 'Where the rules differ'), h('ul', null, differences.map((text) => h('li', null, text))));
  show();
}
