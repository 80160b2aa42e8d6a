// A table of any length: only the visible rows are in the page. Sorts by a click on a heading; arrow keys move between
// cells, Enter opens the row.
const PRINTED_ROWS = 64; // rows of a table that are printed; a sentence states the rest

// `columns`: {title, number, value(row), text(row)}; `rows`: list of keys; `open(row)`: what a click on a row does;
// `pinned`: {cells} shown first, whatever the order; `mark(row)`: true if the row is emphasized.
function dataGrid({ label, columns, rows, open, pinned, mark, sort }) {
  const height = 26;
  const state = { rows: [...rows], column: sort?.column ?? null, down: sort?.down ?? false, at: [0, 0], all: false };
  const head = h('tr', null, columns.map((column, i) => h('th', { scope: 'col', class: column.number ? 'number' : null },
    h('button', { type: 'button', title: `Sort by ${column.title}`, onclick: () => order(i) }, column.title))));
  const body = h('tbody');
  const grid = h('div', { class: 'grid', tabindex: '0', role: 'region', 'aria-label': `${label}. Arrow keys move between cells.` },
    h('table', { 'aria-label': label, 'aria-rowcount': rows.length + 1 }, h('thead', null, head), body));
  const more = h('p', { class: 'note' });
  more.hidden = true;

  function order(i) {
    state.down = state.column === i ? !state.down : Boolean(columns[i].number);
    state.column = i;
    arrange();
  }
  function arrange() {
    const column = columns[state.column];
    if (column) {
      const direction = state.down ? -1 : 1;
      state.rows.sort((a, b) => {
        const [x, y] = [column.value(a), column.value(b)];
        const [noX, noY] = [x === null || x === undefined, y === null || y === undefined];
        if (noX || noY) return noX - noY; // rows without the figure come last
        return direction * (typeof x === 'number' ? x - y : String(x).localeCompare(String(y)));
      });
    }
    [...head.children].forEach((cell, i) => {
      cell.setAttribute('aria-sort', i !== state.column ? 'none' : state.down ? 'descending' : 'ascending');
      cell.firstChild.textContent = columns[i].title + (i !== state.column ? '' : state.down ? ' ▾' : ' ▴');
    });
    draw();
  }
  function rowElement(key, index) {
    const line = h('tr', {
      class: [open && 'open', mark?.(key) && 'blamed'].filter(Boolean).join(' ') || null, 'aria-rowindex': index + 2,
      onclick: () => open?.(key),
    }, columns.map((column, i) => h('td', {
      class: [column.number && 'number', index === state.at[0] && i === state.at[1] && document.activeElement === grid && 'at']
        .filter(Boolean).join(' ') || null,
      title: column.number ? null : column.text(key),
    }, column.text(key))));
    return line;
  }
  function draw() {
    const first = state.all ? 0 : Math.max(0, Math.floor(grid.scrollTop / height) - 8);
    const last = state.all ? Math.min(PRINTED_ROWS, state.rows.length) : Math.min(state.rows.length, first + 40);
    const lines = [];
    if (pinned) {
      lines.push(h('tr', { class: 'mean' }, pinned().map((text, i) =>
        h('td', { class: columns[i].number ? 'number' : null }, text))));
    }
    lines.push(space(first), ...state.rows.slice(first, last).map((key, i) => rowElement(key, first + i)));
    lines.push(space(state.all ? 0 : state.rows.length - last));
    body.replaceChildren(...lines.filter(Boolean));
    more.hidden = !(state.all && state.rows.length > last);
    more.textContent = `The first ${last} of ${state.rows.length} rows; the JSON has all.`;
  }
  function space(count) {
    if (count <= 0) return null;
    const cell = h('td', { colspan: columns.length });
    cell.style.height = `${count * height}px`;
    return h('tr', { class: 'space', 'aria-hidden': 'true' }, cell);
  }
  function move(down, right) {
    const [row, column] = state.at;
    state.at = [Math.max(0, Math.min(state.rows.length - 1, row + down)), Math.max(0, Math.min(columns.length - 1, column + right))];
    const top = state.at[0] * height;
    if (top < grid.scrollTop) grid.scrollTop = top;
    if (top > grid.scrollTop + grid.clientHeight - 4 * height) grid.scrollTop = top - grid.clientHeight + 4 * height;
    draw();
  }
  const KEYS = {
    ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
    PageUp: () => move(-10, 0), PageDown: () => move(10, 0), Home: () => move(-Infinity, 0), End: () => move(state.rows.length, 0),
    Enter: () => state.rows.length > 0 && open?.(state.rows[state.at[0]]),
  };
  grid.addEventListener('keydown', (event) => {
    if (event.target !== grid || !KEYS[event.key]) return;
    KEYS[event.key]();
    event.preventDefault();
  });
  let pending = false;
  grid.addEventListener('scroll', () => {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => {
      pending = false;
      draw();
    });
  });
  grid.addEventListener('focus', draw);
  grid.addEventListener('blur', draw);
  printable.push((printing) => {
    state.all = printing;
    draw();
  });
  arrange();
  const element = h('div', null, grid, more);
  element.setRows = (next) => {
    state.rows = [...next];
    state.at = [0, 0];
    grid.scrollTop = 0;
    grid.querySelector('table').setAttribute('aria-rowcount', next.length + 1);
    arrange();
  };
  element.refresh = arrange;
  grid.keep = () => ({ title: columns[state.column]?.title, down: state.down, at: state.at, scroll: grid.scrollTop });
  grid.restore = ({ title, down, at, scroll }) => {
    const column = columns.findIndex((one) => one.title === title);
    if (column >= 0) Object.assign(state, { column, down });
    state.at = [Math.max(0, Math.min(state.rows.length - 1, at[0])), Math.min(columns.length - 1, at[1])];
    arrange();
    grid.scrollTop = scroll;
    draw();
  };
  return element;
}
// Functions that prepare a view for printing (true), and for the screen again (false).
const printable = [];
