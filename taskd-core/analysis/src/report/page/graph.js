// Communication: a node for each rank, an edge for each link. A lasso around nodes opens their matrix.
const GRAPH_LIGHT = [0xfb, 0xe7, 0xd5];
const GRAPH_DARK = [0xe6, 0x88, 0x2e];
const LINK_COLOURS = ['#5a78c9', '#bf73d6', '#3fa45b', '#c2ab3a', '#d9626d', '#4192d3', '#8c6d4f', '#8f9aa8'];
let linkKinds;
derive(() => {
  linkKinds = [...new Set(doc.communication.links.map((link) => link.kind))].sort();
});
const linkColour = (kind) => LINK_COLOURS[linkKinds.indexOf(kind) % LINK_COLOURS.length];

// What the reader has chosen; it outlives the view in a live page.
const graphChoice = { ranks: null, why: '', hidden: new Set(), moved: new Map() };

function communicationView(body) {
  if (doc.communication.steps < doc.steps.length) {
    body.append(h('p', { class: 'warning' }, `Communication was collected for ${doc.communication.steps} of the ${doc.steps.length} steps.`));
  }
  if (!table('communication.transfer_us') && !table('communication.wait_us') && doc.communication.links.length === 0) {
    body.append(emptyView('The trace has no communication: no collective, send or receive was recorded.'));
    return;
  }
  const matrix = h('div');
  const show = (ranks, why) => matrix.replaceChildren(matrixView(ranks, why));
  const open = (ranks, why) => {
    Object.assign(graphChoice, { ranks, why });
    show(ranks, why);
  };
  body.append(h('h3', null, 'Ranks and links'), graphView(open), h('h3', null, 'Matrix'), matrix);
  if (graphChoice.ranks) show(graphChoice.ranks, graphChoice.why);
  else show(firstRanks(), 'ranks of the slowest links and of the verdict');
  body.append(h('h3', null, 'Links of the whole network'), linksView(), h('h3', null, 'Communication of each rank'), rankCommunication());
}
// Ranks that the matrix shows first: the ranks at fault, and those of the links that took longest.
function firstRanks() {
  const ranks = new Set([...blamedRanks].filter((rank) => rankRow.has(rank)).slice(0, 4));
  const slow = doc.communication.links.filter((link) => link.source !== link.destination);
  slow.sort((a, b) => (blamedRanks.has(b.source) || blamedRanks.has(b.destination)) - (blamedRanks.has(a.source) || blamedRanks.has(a.destination))
    || b.time_us - a.time_us);
  for (const link of slow) {
    if (ranks.size + !ranks.has(link.source) + !ranks.has(link.destination) > 6) continue;
    ranks.add(link.source);
    ranks.add(link.destination);
  }
  return [...ranks].sort((a, b) => a - b);
}
function rankCommunication() {
  const paths = present(['communication.transfer_us', 'communication.wait_us']);
  if (paths.length === 0) return emptyView('The trace has links, but no communication time of a rank.');
  return breakdownView({ label: 'Communication', paths, stacked: paths, stageFilter: true });
}

// Nodes on a circle; with many ranks, one small circle for each host.
function placeNodes() {
  const nodes = doc.ranks.map((info, row) => ({ row, info, x: 0, y: 0 }));
  const hosts = new Map();
  for (const node of nodes) {
    const key = node.info.host ?? `ranks ${Math.floor(node.info.rank / 8) * 8}`;
    hosts.set(key, [...(hosts.get(key) ?? []), node]);
  }
  const groups = nodes.length <= 32 ? [nodes] : [...hosts.values()];
  // Rows of equal length, so that the stages of a job stand one above the other.
  const wide = Math.sqrt(groups.length * 2.2);
  const divisors = Array.from({ length: groups.length }, (_, i) => i + 1).filter((count) => groups.length % count === 0);
  const even = divisors.reduce((best, count) => (Math.abs(count - wide) < Math.abs(best - wide) ? count : best));
  const across = groups.length === 1 || even > wide / 2 && even < wide * 2 ? even : Math.ceil(wide);
  const down = Math.ceil(groups.length / across);
  groups.forEach((group, i) => {
    const [cx, cy] = [(i % across + 0.5) / across, (Math.floor(i / across) + 0.5) / down];
    group.forEach((node, j) => {
      const angle = 2 * Math.PI * j / group.length - Math.PI / 2;
      node.x = cx + (group.length > 1 ? 0.36 : 0) * Math.cos(angle) / across * (groups.length === 1 ? 0.86 : 1);
      node.y = cy + (group.length > 1 ? 0.38 : 0) * Math.sin(angle) / down;
    });
  });
  return { nodes, size: Math.min(1 / across, 1 / down) };
}
function graphView(open) {
  const { nodes, size } = placeNodes();
  const mean = (path, row) => means(path)?.of_ranks[row] ?? null;
  const total = (row) => (mean('communication.transfer_us', row) ?? 0) + (mean('communication.wait_us', row) ?? 0);
  const most = Math.max(1, ...nodes.map((node) => total(node.row)));
  const edges = doc.communication.links.filter((link) => link.source !== link.destination && rankRow.has(link.source) && rankRow.has(link.destination));
  for (const node of nodes) Object.assign(node, graphChoice.moved.get(node.info.rank));
  const point = (node, self) => [12 + node.x * (self.width - 24), 12 + node.y * (self.height - 24)];
  const radius = (node, self) => {
    const largest = Math.max(3, Math.min(30, size * Math.min(self.width / 2, self.height) * 0.13));
    return largest * (0.35 + 0.65 * Math.sqrt(total(node.row) / most));
  };
  const fill = (node) => {
    const share = doc.summary.transfer_share[node.row];
    if (share === null || share === undefined) return '#9aa5b1';
    return `rgb(${GRAPH_LIGHT.map((light, i) => Math.round(light + (GRAPH_DARK[i] - light) * share)).join(',')})`;
  };
  const nodeAt = (px, py, self) => nodes.findLast((node) => {
    const [x, y] = point(node, self);
    return Math.hypot(px - x, py - y) <= radius(node, self) + 2;
  });
  let held = null;
  const view = chart({
    label: 'Node-link graph of the communication', height: nodes.length > 32 ? 560 : 380, margin: {}, brush: 'lasso',
    draw(self) {
      const { ctx, palette } = self;
      ctx.fillStyle = palette.paper;
      ctx.fillRect(0, 0, self.width, self.height);
      ctx.lineWidth = edges.length > 2000 ? 0.5 : 1.2;
      ctx.globalAlpha = edges.length > 2000 ? 0.35 : 0.6;
      for (const kind of linkKinds.filter((kind) => !graphChoice.hidden.has(kind))) {
        ctx.strokeStyle = linkColour(kind);
        ctx.beginPath();
        for (const link of edges) {
          if (link.kind !== kind) continue;
          ctx.moveTo(...point(nodes[rankRow.get(link.source)], self));
          ctx.lineTo(...point(nodes[rankRow.get(link.destination)], self));
        }
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.textAlign = 'center';
      for (const node of nodes) {
        const [x, y] = point(node, self);
        const r = radius(node, self);
        const isBlamed = blamedRanks.has(node.info.rank);
        ctx.beginPath();
        ctx.arc(x, y, r, 0, 2 * Math.PI);
        ctx.fillStyle = fill(node);
        ctx.fill();
        ctx.strokeStyle = isBlamed ? palette.bad : '#a06a35';
        ctx.lineWidth = isBlamed ? 3 : 1;
        ctx.stroke();
        if (r < 9) continue;
        ctx.fillStyle = '#1b2128';
        ctx.fillText(String(node.info.rank), x, y);
      }
      ctx.lineWidth = 1;
    },
    hover(px, py, self) {
      const node = nodeAt(px, py, self);
      return node ? [rankName(node.row), `transfer per step: ${msUnit(mean('communication.transfer_us', node.row))}`,
        `wait per step: ${msUnit(mean('communication.wait_us', node.row))}`,
        `transfer / (transfer + wait): ${percent(doc.summary.transfer_share[node.row])}`, 'click: matrix with its neighbours'].join('\n') : null;
    },
    click(px, py, self) {
      const node = nodeAt(px, py, self);
      if (!node) return;
      const ranks = new Set([node.info.rank]);
      for (const link of edges) {
        if (link.source === node.info.rank) ranks.add(link.destination);
        if (link.destination === node.info.rank) ranks.add(link.source);
      }
      open([...ranks].sort((a, b) => a - b), `rank ${node.info.rank} and its neighbours`);
    },
    drag: {
      start(px, py, self) {
        held = nodeAt(px, py, self) ?? null;
        return held !== null;
      },
      move(px, py, self) {
        held.x = Math.max(0, Math.min(1, (px - 12) / (self.width - 24)));
        held.y = Math.max(0, Math.min(1, (py - 12) / (self.height - 24)));
        graphChoice.moved.set(held.info.rank, { x: held.x, y: held.y });
        self.draw();
      },
    },
    lasso(points, self) {
      const inside = nodes.filter((node) => isInside(point(node, self), points)).map((node) => node.info.rank);
      if (inside.length > 0) open(inside, 'ranks inside the lasso');
    },
    step: { count: () => nodes.length, place: (i, self) => point(nodes[i], self) },
  });
  requestAnimationFrame(view.draw);
  const kinds = linkKinds.map((kind) => h('button', { type: 'button', 'aria-pressed': String(!graphChoice.hidden.has(kind)), onclick: (event) => {
    if (!graphChoice.hidden.delete(kind)) graphChoice.hidden.add(kind);
    event.target.setAttribute('aria-pressed', String(!graphChoice.hidden.has(kind)));
    view.draw();
  } }, kind));
  return h('div', null, kinds.length > 1 && h('div', { class: 'tools' }, 'Links:', kinds),
    legend([['mostly waiting', '#fbe7d5'], ['little waiting: likely slow', '#e6882e'], ...linkKinds.map((kind) => [`link: ${kind}`, linkColour(kind)])]),
    view.element, note('The area of a node grows with transfer and wait of the rank. Drag a node to move it; draw a lasso around nodes, or click one, '
      + 'to see their matrix.'), edges.length === 0 && emptyView('The trace names no single link, so the graph has no edges.'));
}
function isInside([x, y], points) {
  let inside = false;
  points.forEach(([x1, y1], i) => {
    const [x2, y2] = points[(i + 1) % points.length];
    if ((y1 > y) !== (y2 > y) && x < x1 + (y - y1) / (y2 - y1) * (x2 - x1)) inside = !inside;
  });
  return inside;
}
