// Elements of the page. Names in the document come from traces, so text is set as text only, never as markup.
function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'class') element.className = value;
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const emptyView = (why) => h('p', { class: 'empty-view' }, why);
const note = (text) => h('p', { class: 'note' }, text);
function legend(entries) {
  return h('div', { class: 'legend' }, entries.map(([text, colour]) => {
    const swatch = h('i', { 'aria-hidden': 'true' });
    swatch.style.background = colour;
    return h('span', null, swatch, text);
  }));
}
function choice(label, options, onchange, chosen) {
  const select = h('select', { onchange: () => onchange(select.value) },
    options.map(([value, text]) => h('option', { value, selected: value === chosen }, text)));
  return h('label', null, label, select);
}
function facts(entries) {
  return h('dl', { class: 'facts' }, entries.filter(Boolean).map(([name, value]) =>
    h('div', null, h('dt', null, name), h('dd', null, value))));
}
const rankLink = (rank) => h('a', { href: `#rank-${rank}` }, `rank ${rank}`);

// A table of few rows, without sorting. `columns` are [title, is a number].
function plainTable(caption, columns, rows) {
  return h('table', { class: 'plain', 'aria-label': caption },
    h('thead', null, h('tr', null, columns.map(([title, number]) =>
      h('th', { scope: 'col', class: number ? 'number' : null }, title)))),
    h('tbody', null, rows.map((row) => h('tr', null, row.map((cell, i) =>
      h('td', { class: columns[i][1] ? 'number' : null }, cell))))));
}
function evidenceTable(items) {
  if (items.length === 0) return note('The detector gave no single figures.');
  return plainTable('Evidence', [['Quantity'], ['Measured', true], ['Usual', true], ['Reason']],
    items.map((item) => [item.what, plain(item.value), plain(item.usual), item.text]));
}

// The tooltip, and the same text for screen readers.
const tip = document.getElementById('tip');
function showTip(text, x, y) {
  if (tip.textContent !== text) tip.textContent = text;
  tip.hidden = false;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 12 : y + 18)}px`;
}
function hideTip() {
  tip.hidden = true;
}
