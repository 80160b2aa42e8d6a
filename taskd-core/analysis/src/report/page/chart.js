// A canvas with axes, zoom, hover and keys. The lower canvas has the figures and is drawn when data, zoom, size or theme
// change; the upper one has the brush and the cursor, so that moving the pointer draws nothing else.
const allCharts = new Set();

function colours() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  return { paper: get('paper'), panel: get('panel'), ink: get('ink'), quiet: get('quiet'), line: get('line'), grid: get('grid'),
    accent: get('accent'), bad: get('bad'), mark: get('mark') };
}

// `options`:
//   label      name for screen readers
//   height     in CSS pixels
//   margin     {l, t, r, b} around the plot
//   draw(c)    draws; c has ctx, width, height, plot {x, y, w, h}, palette, zoom
//   hover(px, py, c)  text for the tooltip, or null
//   click(px, py, c)
//   brush      'x', 'xy' or 'lasso'; needs `extent()`: {x0, x1, y0, y1} of the whole, unless 'lasso'
//   lasso(points, c), drag {start(px, py, c), move(px, py, c), end()}
//   origin     zero of the horizontal axis, for a zoom that is kept for another document; default 0
//   step       moves the keyboard's cursor: {count(), place(i, c): [px, py]}
function chart(options) {
  const base = h('canvas');
  const over = h('canvas', { 'aria-hidden': 'true' });
  const keys = options.brush && options.brush !== 'lasso'
    ? 'Drag to zoom, double click or Escape to reset, plus and minus to zoom, arrow keys to move.' : 'Arrow keys move between items.';
  const element = h('div', { class: 'chart', tabindex: '0', role: 'application', 'aria-roledescription': 'chart',
    'aria-label': `${options.label}. ${keys}` }, base, over);
  const self = { element, options, height: options.height, width: 0, zoom: null, cursor: -1, palette: null, printing: false };
  const margin = { l: 56, t: 10, r: 12, b: 26, ...options.margin };
  self.x = (value) => self.plot.x + (value - self.view.x0) / (self.view.x1 - self.view.x0) * self.plot.w;
  self.y = (value) => self.plot.y + (value - self.view.y0) / (self.view.y1 - self.view.y0) * self.plot.h;
  self.unX = (px) => self.view.x0 + (px - self.plot.x) / self.plot.w * (self.view.x1 - self.view.x0);
  self.unY = (py) => self.view.y0 + (py - self.plot.y) / self.plot.h * (self.view.y1 - self.view.y0);

  self.draw = () => {
    const width = self.printing ? 980 : element.clientWidth;
    if (width === 0) return;
    const ratio = self.printing ? 2 : Math.min(2, devicePixelRatio || 1);
    self.width = width;
    for (const canvas of [base, over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(self.height * ratio);
      canvas.style.height = `${self.height}px`;
    }
    self.ratio = ratio;
    self.palette = colours();
    self.plot = { x: margin.l, y: margin.t, w: Math.max(10, width - margin.l - margin.r), h: Math.max(10, self.height - margin.t - margin.b) };
    if (options.extent) self.view = self.zoom ?? options.extent();
    const ctx = base.getContext('2d');
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.font = '12px system-ui, "DejaVu Sans", sans-serif';
    ctx.textBaseline = 'middle';
    self.ctx = ctx;
    options.draw(self);
    element.dataset.drawn = String(Number(element.dataset.drawn ?? 0) + 1);
    element.dataset.zoomed = String(self.zoom !== null);
  };
  self.overlay = (paint) => {
    const ctx = over.getContext('2d');
    ctx.setTransform(self.ratio, 0, 0, self.ratio, 0, 0);
    ctx.clearRect(0, 0, self.width, self.height);
    paint?.(ctx);
  };
  self.setHeight = (height) => {
    self.height = height;
    self.draw();
  };
  self.setZoom = (zoom) => {
    self.zoom = zoom;
    self.draw();
    options.zoomed?.(self);
  };
  const changeZoom = (factor, shift) => {
    if (!options.extent) return;
    const [view, whole] = [self.view, options.extent()];
    const span = Math.min(whole.x1 - whole.x0, (view.x1 - view.x0) * factor);
    const middle = (view.x0 + view.x1) / 2 + shift * span;
    const x0 = Math.max(whole.x0, Math.min(whole.x1 - span, middle - span / 2));
    self.setZoom(span >= (whole.x1 - whole.x0) && view.y0 === whole.y0 && view.y1 === whole.y1 ? null
      : { ...view, x0, x1: x0 + span });
  };
  self.changeZoom = changeZoom;
  const shiftRows = (direction) => {
    const [view, whole] = [self.view, options.extent()];
    const span = view.y1 - view.y0;
    const y0 = Math.max(whole.y0, Math.min(whole.y1 - span, view.y0 + direction * Math.max(1, Math.round(span / 4))));
    if (y0 !== view.y0) self.setZoom({ ...view, y0, y1: y0 + span });
  };

  const spot = (event) => {
    const box = element.getBoundingClientRect();
    return [event.clientX - box.left - element.clientLeft, event.clientY - box.top - element.clientTop];
  };
  let down = null;
  let points = [];
  element.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || !self.plot) return;
    down = spot(event);
    points = [down];
    down.dragging = options.drag?.start(down[0], down[1], self) ?? false;
    element.setPointerCapture(event.pointerId);
  });
  element.addEventListener('pointermove', (event) => {
    if (!self.plot) return;
    const [px, py] = spot(event);
    if (!down) {
      const text = options.hover?.(px, py, self);
      if (text) showTip(text, event.clientX, event.clientY);
      else hideTip();
      element.style.cursor = text && options.click ? 'pointer' : options.brush ? 'crosshair' : 'default';
      return;
    }
    hideTip();
    if (down.dragging) options.drag.move(px, py, self);
    else if (options.brush) {
      points.push([px, py]);
      self.overlay((ctx) => paintBrush(ctx, self, down, [px, py], points));
    }
  });
  element.addEventListener('pointerup', (event) => {
    if (!down) return;
    const [px, py] = spot(event);
    const moved = Math.hypot(px - down[0], py - down[1]) > 5;
    const from = down;
    down = null;
    self.overlay();
    if (from.dragging) options.drag.end?.(self);
    if (!moved) options.click?.(px, py, self);
    else if (from.dragging) return;
    else if (options.brush === 'lasso') options.lasso(points, self);
    else if (options.brush) self.setZoom(brushed(self, from, [px, py]));
  });
  element.addEventListener('pointercancel', () => {
    down = null;
    self.overlay();
  });
  element.addEventListener('pointerleave', hideTip);
  element.addEventListener('dblclick', () => self.zoom && self.setZoom(null));
  element.addEventListener('contextmenu', (event) => {
    if (!options.back) return;
    event.preventDefault();
    options.back(self);
  });
  element.addEventListener('wheel', (event) => {
    if (!options.extent || !options.brush || !(event.ctrlKey || event.shiftKey)) return;
    event.preventDefault();
    const [px] = spot(event);
    changeZoom(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, 0.2 * ((px - self.plot.x) / self.plot.w - 0.5));
  }, { passive: false });
  const moveCursor = (change) => {
    const count = options.step.count(self);
    if (count === 0) return;
    self.cursor = self.cursor < 0 ? 0 : Math.max(0, Math.min(count - 1, self.cursor + change));
    const [px, py] = options.step.place(self.cursor, self);
    self.overlay((ctx) => {
      ctx.strokeStyle = self.palette.accent;
      ctx.lineWidth = 2;
      ctx.strokeRect(px - 6, py - 6, 12, 12);
    });
    const box = element.getBoundingClientRect();
    const text = options.hover?.(px, py, self);
    if (text) showTip(text, box.left + px, box.top + py);
  };
  element.addEventListener('keydown', (event) => {
    if (!self.plot || event.altKey || event.ctrlKey || event.metaKey) return;
    const zooms = Boolean(options.extent && options.brush);
    const stepping = options.step && !(zooms && event.shiftKey);
    const actions = {
      Escape: () => {
        hideTip();
        self.overlay();
        self.cursor = -1;
        if (self.zoom) self.setZoom(null);
        else options.back?.(self);
      },
      '+': () => changeZoom(0.6, 0), '=': () => changeZoom(0.6, 0), '-': () => changeZoom(1 / 0.6, 0),
      ArrowLeft: () => (stepping ? moveCursor(-1) : changeZoom(1, -0.2)),
      ArrowRight: () => (stepping ? moveCursor(1) : changeZoom(1, 0.2)),
      ArrowUp: () => (stepping ? moveCursor(-(options.step.row?.(self) ?? 1)) : zooms && shiftRows(-1)),
      ArrowDown: () => (stepping ? moveCursor(options.step.row?.(self) ?? 1) : zooms && shiftRows(1)),
      Enter: () => {
        if (!options.step || self.cursor < 0) return;
        const [px, py] = options.step.place(self.cursor, self);
        options.click?.(px, py, self);
      },
    };
    if (!actions[event.key] || (event.key.length === 1 && !zooms)) return;
    actions[event.key]();
    event.preventDefault();
  });
  element.addEventListener('blur', () => {
    hideTip();
    if (self.ratio && self.cursor >= 0) self.overlay();
  });
  const origin = options.origin ?? (() => 0);
  element.keep = () => ({ cursor: self.cursor, whole: self.zoom && options.extent(),
    zoom: self.zoom && { ...self.zoom, x0: self.zoom.x0 + origin(), x1: self.zoom.x1 + origin() } });
  element.restore = ({ cursor, zoom, whole: before }) => {
    self.cursor = Math.min(cursor, (options.step?.count(self) ?? 0) - 1);
    if (!zoom) {
      if (self.zoom) self.setZoom(null);
      return;
    }
    const whole = options.extent();
    const [x0, x1] = [Math.max(whole.x0, zoom.x0 - origin()), Math.min(whole.x1, zoom.x1 - origin())];
    const rows = zoom.y0 === before.y0 && zoom.y1 === before.y1 || zoom.y1 > whole.y1 ? whole : zoom;
    if (x1 > x0) self.setZoom({ x0, x1, y0: rows.y0, y1: rows.y1 });
  };
  new ResizeObserver(() => {
    if (!self.printing && element.clientWidth !== self.width) self.draw();
  }).observe(element);
  printable.push((printing) => {
    self.printing = printing && element.isConnected;
    if (element.isConnected) self.draw();
  });
  allCharts.add(self);
  return self;
}

function paintBrush(ctx, self, from, to, points) {
  const { plot, palette, options } = self;
  ctx.strokeStyle = palette.accent;
  ctx.fillStyle = palette.accent;
  if (options.brush === 'lasso') {
    ctx.beginPath();
    points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.closePath();
    ctx.stroke();
    ctx.globalAlpha = 0.15;
    ctx.fill();
    ctx.globalAlpha = 1;
    return;
  }
  const wholeHeight = !takesRows(self, from, to);
  const [x, y] = [Math.min(from[0], to[0]), wholeHeight ? plot.y : Math.min(from[1], to[1])];
  const [w, hh] = [Math.abs(from[0] - to[0]), wholeHeight ? plot.h : Math.abs(from[1] - to[1])];
  ctx.globalAlpha = 0.18;
  ctx.fillRect(x, y, w, hh);
  ctx.globalAlpha = 1;
  ctx.strokeRect(x, y, w, hh);
}
// A brush that is nearly horizontal selects time only.
const takesRows = (self, from, to) => self.options.brush === 'xy' && Math.abs(from[1] - to[1]) > 28;
function brushed(self, from, to) {
  const whole = self.options.extent();
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const [a, b] = [self.unX(from[0]), self.unX(to[0])].sort((p, q) => p - q);
  const zoom = { ...self.view, x0: clamp(a, whole.x0, whole.x1), x1: clamp(b, whole.x0, whole.x1) };
  if (takesRows(self, from, to)) {
    const [c, d] = [self.unY(from[1]), self.unY(to[1])].sort((p, q) => p - q);
    zoom.y0 = Math.floor(clamp(c, whole.y0, whole.y1 - 1));
    zoom.y1 = Math.ceil(clamp(d, zoom.y0 + 1, whole.y1));
  }
  return zoom.x1 - zoom.x0 > 1e-6 ? zoom : self.zoom;
}

// Round numbers for the marks of an axis.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !isFinite(raw)) return [];
  const power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw);
  const marks = [];
  for (let mark = Math.ceil(low / size); mark * size <= high; mark += 1) marks.push(mark * size);
  return marks;
}
const short = (value) => (Math.abs(value) >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(4))));

// Clears the canvas and draws a frame with horizontal lines and the marks of the left axis.
function frame(self, low, high, title) {
  const { ctx, plot, palette } = self;
  ctx.fillStyle = palette.paper;
  ctx.fillRect(0, 0, self.width, self.height);
  const place = (value) => plot.y + plot.h - (value - low) / (high - low || 1) * plot.h;
  ctx.textAlign = 'right';
  ctx.lineWidth = 1;
  for (const mark of ticks(low, high, plot.h / 40)) {
    ctx.strokeStyle = palette.grid;
    ctx.beginPath();
    ctx.moveTo(plot.x, Math.round(place(mark)) + 0.5);
    ctx.lineTo(plot.x + plot.w, Math.round(place(mark)) + 0.5);
    ctx.stroke();
    ctx.fillStyle = palette.quiet;
    ctx.fillText(short(mark), plot.x - 6, place(mark));
  }
  sideTitle(self, title, 12);
  return place;
}
function sideTitle(self, title, x) {
  const { ctx, plot, palette } = self;
  ctx.save();
  ctx.translate(x, plot.y + plot.h / 2);
  ctx.rotate(-Math.PI / 2);
  ctx.textAlign = 'center';
  ctx.fillStyle = palette.quiet;
  ctx.fillText(title, 0, 0);
  ctx.restore();
}
// The marks of a time axis below the plot, in seconds.
function timeAxis(self) {
  const { ctx, plot, palette, view } = self;
  ctx.textAlign = 'center';
  const marks = ticks(view.x0 / 1e6, view.x1 / 1e6, plot.w / 110);
  const digits = marks.length > 1 ? Math.max(0, Math.ceil(-Math.log10(marks[1] - marks[0]) - 1e-9)) : 3;
  for (const mark of marks) {
    const px = Math.round(self.x(mark * 1e6)) + 0.5;
    ctx.strokeStyle = palette.line;
    ctx.beginPath();
    ctx.moveTo(px, plot.y + plot.h);
    ctx.lineTo(px, plot.y + plot.h + 4);
    ctx.stroke();
    ctx.fillStyle = palette.quiet;
    ctx.fillText(`${mark.toFixed(digits)} s`, px, plot.y + plot.h + 14);
  }
}
