"use strict";
(async () => {
  const $ = id => document.getElementById(id);
  const about = JSON.parse($("content").textContent);
  const raw = Uint8Array.from(atob($("data").textContent), c => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const state = { sheet: 0, layer: 0, slot: 0, q: 0, k: 0, mode: "weights", measure: Object.keys(about.measures)[0], open: true, pair: false };

  // Numbers -----------------------------------------------------------------------------------------

  const HALVES = new Float32Array(65536);
  for (let i = 0; i < 65536; i++) {
    const sign = i >> 15 ? -1 : 1, exponent = (i >> 10) & 31, rest = i & 1023;
    HALVES[i] = sign * (exponent === 0 ? rest * 2 ** -24 : exponent === 31 ? (rest ? NaN : Infinity) : (1 + rest / 1024) * 2 ** (exponent - 15));
  }
  function halves(at, index, count) {
    const start = at + index * 2 * count, found = new Float32Array(count);
    for (let i = 0; i < count; i++) found[i] = HALVES[bytes[start + i] | bytes[start + count + i] << 8];
    return found;
  }
  function multiples(at, index, count, step) {
    const start = at + index * 2 * count, found = new Float64Array(count);
    for (let i = 0; i < count; i++) {
      const code = bytes[start + i] | bytes[start + count + i] << 8;
      found[i] = code === 65535 ? NaN : (code - 256) * step;
    }
    return found;
  }
  const sign = text => text.replace("-", "−");
  const digits = (x, step) => Number.isFinite(x) ? sign(x.toFixed(Math.max(0, Math.min(12, Math.ceil(-Math.log10(step)))))) : "not finite";
  const two = x => Number.isFinite(x) ? sign(String(Number(x.toPrecision(2)))) : "not finite";
  const three = x => Number.isNaN(x) ? "NaN" : !Number.isFinite(x) ? (x > 0 ? "∞" : "−∞") : String(Number(x.toPrecision(3))).replace("-", "−");
  // Below the normal numbers of float16 there are fewer digits.
  const weightText = x => x === 0 ? "0 or less than 0.0000001" : x < 6.2e-5 ? `about ${Number(x.toPrecision(1))}` : three(x);
  const measure = x => x === null ? "-" : x === "nan" ? "NaN" : three(x);
  function share(code) {
    if (code === -128) return "NaN";
    if (code === 0) return "0 (the same bits)";
    const size = Math.abs(code), sign = code > 0 ? "+" : "−";
    if (size === 60) return `${sign}0.001 or less`;
    return sign + (size === 127 ? "over 300" : String(Number((10 ** ((size - 96) / 12)).toPrecision(2))));
  }
  const shareOf = x => x === "nan" ? "NaN" : x === 0 ? "0" : (x === "inf" || x > 0 ? "+" : "−") + (typeof x === "string" ? "∞" : String(Number(Math.abs(x).toPrecision(2))));

  // Pictures ----------------------------------------------------------------------------------------

  const pictureOf = layer => {
    const sheet = about.sheets[state.sheet];
    return about.pictures.find(p => p.layer === about.layers[layer] && p.pass === sheet.pass && p.item === sheet.item);
  };
  const read = new Map();
  function head(picture, slot) {
    const key = about.pictures.indexOf(picture) + "/" + slot;
    if (read.has(key)) return read.get(key);
    const { lq, lk, d, at } = picture, found = { exact: picture.block === 1 && "weights" in at };
    if (found.exact) {
      found.rows = lq; found.columns = lk;
      found.weights = halves(at.weights, slot, lq * lk);
      const mask = at.where + (at.masks === 1 ? 0 : slot) * Math.ceil(lq * lk / 8);
      found.open = i => bytes[mask + (i >> 3)] >> (7 - (i & 7)) & 1;
      found.queries = () => multiples(at.queries, slot, lq * d, at.queriesSteps[slot]);
      found.keys = () => multiples(at.keys, picture.groups[slot], lk * d, at.keysSteps[picture.groups[slot]]);
      if ("shares" in at) found.shares = new Int8Array(bytes.buffer, at.shares + slot * lq * lk, lq * lk);
    } else {
      found.rows = Math.ceil(lq / picture.block); found.columns = Math.ceil(lk / picture.block);
      const count = found.rows * found.columns, start = at.blocks + slot * count;
      found.weights = Float32Array.from(bytes.subarray(start, start + count), c => (c / 255) ** 2);
      found.open = () => 1;
    }
    if (read.size > 400) read.clear();
    read.set(key, found);
    return found;
  }
  const colour = name => {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    return [1, 3, 5].map(i => parseInt(text.slice(i, i + 2), 16));
  };
  function draw(canvas, one, size) {
    const low = colour("--low"), high = colour("--high"), closed = colour("--closed");
    const minus = colour("--minus"), plus = colour("--plus"), bad = colour("--bad");
    const image = new ImageData(one.columns, one.rows), shares = state.mode === "shares" && one.shares;
    const dots = [];
    for (let i = 0; i < one.rows * one.columns; i++) {
      const value = shares ? one.shares[i] : one.weights[i];
      let from = low, to = low, part = 1;
      if (!one.open(i) && !value) { from = to = closed; dots.push(i); }
      else if (shares) { to = value === -128 ? bad : value < 0 ? minus : plus; part = value === -128 ? 1 : value === 0 ? 0 : Math.min(1, (Math.abs(value) - 50) / 60); }
      else if (Number.isNaN(value)) to = bad;
      else { to = high; part = Math.sqrt(Math.min(1, value)); }
      for (let j = 0; j < 3; j++) image.data[4 * i + j] = Math.round(from[j] + (to[j] - from[j]) * part);
      image.data[4 * i + 3] = 255;
    }
    canvas.width = one.columns * size; canvas.height = one.rows * size;
    const context = canvas.getContext("2d");
    if (size === 1) { context.putImageData(image, 0, 0); return; }
    const small = document.createElement("canvas");
    small.width = one.columns; small.height = one.rows;
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    if (size < 6) return;
    context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--dot");
    for (const i of dots) context.fillRect((i % one.columns + 0.5) * size - 1, (Math.floor(i / one.columns) + 0.5) * size - 1, 2, 2);
  }

  // The grid ----------------------------------------------------------------------------------------

  function drawText() {
    const picture = about.layers.map((_, layer) => pictureOf(layer)).find(Boolean), row = picture ? about.tokens[picture.queries] : [];
    const words = row.some((word, i) => word !== String(i));
    $("text").hidden = !words;
    $("text").textContent = words ? `Text: ${row.join(" ")}` : "";
  }
  const buttons = [...document.querySelectorAll("#grid button")];
  const buttonAt = (layer, slot) => buttons.find(b => +b.dataset.layer === layer && +b.dataset.slot === slot);
  function drawGrid() {
    const all = about.layers.flatMap((_, layer) => pictureOf(layer)?.measures[state.measure] ?? []);
    const most = Math.max(1e-9, ...all.filter(x => typeof x === "number").map(Math.abs));
    for (const button of buttons) {
      const layer = +button.dataset.layer, slot = +button.dataset.slot, picture = pictureOf(layer);
      const name = `layer ${about.numbers[layer]} head ${picture ? picture.heads[slot] : slot}`;
      const bar = button.querySelector(".bar span"), text = button.querySelector(".value");
      button.disabled = !picture;
      if (!picture) { text.textContent = "not called"; bar.style.width = "0"; button.querySelector("canvas").width = 1; button.setAttribute("aria-label", `${name}, not called here`); continue; }
      const own = picture.measures[state.measure][slot];
      bar.style.width = typeof own === "number" ? `${100 * Math.abs(own) / most}%` : "0";
      const words = Object.keys(about.measures).map(key => `${key} ${measure(picture.measures[key][slot])}`);
      words.unshift(words.splice(Object.keys(about.measures).indexOf(state.measure), 1)[0]);
      const shares = picture.shares && `largest difference of ${about.other} ${shareOf(picture.shares[slot])} of what is allowed`;
      text.textContent = state.mode === "shares" && picture.shares ? shareOf(picture.shares[slot]) : measure(own);
      button.setAttribute("aria-label", [name, picture.grouped && `key head ${picture.keyHeads[slot]}`, ...words, shares].filter(Boolean).join(", "));
      button.title = button.getAttribute("aria-label");
      button.setAttribute("aria-current", String(state.open && layer === state.layer && slot === state.slot));
      draw(button.querySelector("canvas"), head(picture, slot), 1);
    }
  }
  function stop(button) {
    for (const other of buttons) other.tabIndex = other === button ? 0 : -1;
    button.focus();
  }
  $("grid").addEventListener("keydown", event => {
    const here = event.target.closest("button");
    if (!here) return;
    const layer = +here.dataset.layer, slot = +here.dataset.slot;
    const ofLayer = l => buttons.filter(b => +b.dataset.layer === l && !b.disabled);
    const near = l => { const row = ofLayer(l); return row[Math.min(slot, row.length - 1)]; };
    const to = {
      ArrowLeft: () => buttonAt(layer, slot - 1), ArrowRight: () => buttonAt(layer, slot + 1),
      ArrowUp: () => near(layer - 1), ArrowDown: () => near(layer + 1),
      Home: () => event.ctrlKey ? near(0) && ofLayer(0)[0] : ofLayer(layer)[0],
      End: () => event.ctrlKey ? ofLayer(about.layers.length - 1).at(-1) : ofLayer(layer).at(-1),
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const next = to();
    if (next && !next.disabled) stop(next);
  });
  $("grid").addEventListener("click", event => {
    const button = event.target.closest("button");
    if (!button) return;
    Object.assign(state, { layer: +button.dataset.layer, slot: +button.dataset.slot, open: true, pair: false });
    stop(button);
    for (const one of buttons) one.setAttribute("aria-current", String(one === button));
    drawHead();
    $("head-title").focus({ preventScroll: false });
    $("head").scrollIntoView({ block: "start" });
  });

  // One head ----------------------------------------------------------------------------------------

  const label = (row, i) => about.tokens[row][i];
  const named = (row, i) => label(row, i) === String(i) ? `position ${i}` : `“${label(row, i)}” (${i})`;
  function sentence(picture, one, q, k) {
    if (!one.exact) {
      const ends = (i, length) => `${i * picture.block} to ${Math.min(length, (i + 1) * picture.block) - 1}`;
      return `queries ${ends(q, picture.lq)}, keys ${ends(k, picture.lk)}: at most about ${three(one.weights[q * one.columns + k])}`;
    }
    const i = q * one.columns + k, start = `query ${named(picture.queries, q)} to key ${named(picture.keys, k)}: `;
    if (!one.open(i)) return `${start}may not attend`;
    const more = one.shares ? `; ${about.other} differs by ${share(one.shares[i])} of what rounding allows` : "";
    return `${start}${weightText(one.weights[i])} (${about.base})${more}`;
  }
  let cell = 16, left = 0, top = 0;
  function drawHead() {
    const picture = pictureOf(state.layer), one = picture && head(picture, state.slot);
    $("head").hidden = !state.open || !picture;
    $("pair").hidden = !state.pair || $("head").hidden;
    if ($("head").hidden) return;
    state.q = Math.min(state.q, one.rows - 1); state.k = Math.min(state.k, one.columns - 1);
    const group = picture.grouped ? `, which reads key head ${picture.keyHeads[state.slot]}` : "";
    $("head-title").textContent = `Layer ${about.numbers[state.layer]} head ${picture.heads[state.slot]}${group}`;
    const sheet = about.sheets.length > 1 ? ` (${about.sheets[state.sheet].name})` : "";
    $("head-measures").textContent = `${picture.layer}${sheet}: ` + Object.entries(about.measures).map(([key, words]) => `${words}: ${measure(picture.measures[key][state.slot])}`).join("; ") + ".";
    const colours = state.mode === "shares" && one.shares ? `Orange: ${about.other} gives more, blue: less; the numbers are beside it and in the table.` : "Dots are keys that the query may not attend to.";
    $("matrix-help").textContent = `Rows are queries, columns keys. ${colours} Arrows move, Enter opens the pair.`;
    const longest = Math.max(one.rows, one.columns), labels = one.exact && longest <= 128;
    cell = labels ? (longest <= 40 ? 18 : 13) : Math.max(2, Math.floor(640 / longest));
    const narrow = innerWidth < 640;
    left = labels ? (narrow ? 64 : 104) : 0; top = labels ? 80 : 0;
    $("tops").replaceChildren(); $("sides").replaceChildren();
    if (labels) {
      for (let k = 0; k < one.columns; k++) $("tops").append(text(label(picture.keys, k), `left:${left + k * cell + cell * 0.6}px;top:${top - 13}px`));
      for (let q = 0; q < one.rows; q++) $("sides").append(text(label(picture.queries, q), `left:0;width:${left - 5}px;top:${top + q * cell + (cell - 11) / 2}px`));
    }
    const canvas = $("cells");
    draw(canvas, one, cell);
    canvas.style.cssText = `left:${left}px;top:${top}px;width:${one.columns * cell}px;height:${one.rows * cell}px`;
    $("matrix").style.cssText = `width:${left + one.columns * cell + (labels ? 50 : 2)}px;height:${top + one.rows * cell + 4}px`;
    $("matrix").setAttribute("aria-label", `Matrix of ${$("head-title").textContent}: ${one.rows} rows, ${one.columns} columns`);
    $("lines-part").hidden = !labels;
    $("lines-part").parentElement.toggleAttribute("data-alone", !labels);
    if (labels) drawLines(picture, one);
    drawTable(picture, one);
    look(state.q, state.k);
    if (state.pair) drawPair();
  }
  function text(content, style) {
    const span = document.createElement("span");
    span.textContent = content; span.style.cssText = style;
    return span;
  }
  function look(q, k) {
    const picture = pictureOf(state.layer), one = head(picture, state.slot);
    state.q = q; state.k = k;
    $("readout").textContent = sentence(picture, one, q, k);
    $("mark").style.cssText = `left:${left + 1 + k * cell}px;top:${top + 1 + q * cell}px;width:${cell}px;height:${cell}px`;
  }
  function placeOf(event) {
    const box = $("cells").getBoundingClientRect(), one = head(pictureOf(state.layer), state.slot);
    const q = Math.floor((event.clientY - box.top - 1) / cell), k = Math.floor((event.clientX - box.left - 1) / cell);
    return q >= 0 && k >= 0 && q < one.rows && k < one.columns ? [q, k] : null;
  }
  $("matrix").addEventListener("mousemove", event => { const place = placeOf(event); if (place) look(...place); });
  $("matrix").addEventListener("click", event => { const place = placeOf(event); if (place) { look(...place); openPair(); } });
  $("matrix").addEventListener("keydown", event => {
    const one = head(pictureOf(state.layer), state.slot);
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -1e9], End: [0, 1e9], PageUp: [-1e9, 0], PageDown: [1e9, 0] }[event.key];
    if (step) {
      event.preventDefault();
      const within = (x, most) => Math.max(0, Math.min(most - 1, x));
      look(within(state.q + step[0], one.rows), within(state.k + step[1], one.columns));
      $("mark").scrollIntoView({ block: "nearest", inline: "nearest" });
    } else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); openPair(); }
  });
  const FAINTEST = 0.03, ROW = 18;
  function drawLines(picture, one) {
    const svg = $("lines"), rows = Math.max(one.rows, one.columns), width = 360, gap = 130;
    svg.setAttribute("width", width); svg.setAttribute("height", rows * ROW + 6);
    svg.replaceChildren();
    svg.classList.remove("one");
    const made = (name, attributes, content) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
      if (content !== undefined) element.textContent = content;
      svg.append(element);
      return element;
    };
    const short = name => name.length > 16 ? name.slice(0, 15) + "…" : name, lines = [];
    for (let q = 0; q < one.rows; q++) for (let k = 0; k < one.columns; k++) {
      const weight = one.weights[q * one.columns + k];
      if (weight >= FAINTEST) lines.push([q, k, made("line", { x1: gap, y1: q * ROW + 10, x2: width - gap, y2: k * ROW + 10, "stroke-opacity": Math.min(1, weight) })]);
    }
    const side = (count, row, x, anchor, which) => {
      for (let i = 0; i < count; i++) {
        const element = made("text", { x, y: i * ROW + 14, "text-anchor": anchor }, short(label(row, i)));
        element.addEventListener("mouseenter", () => { svg.classList.add("one"); element.classList.add("chosen"); for (const line of lines) line[2].classList.toggle("chosen", line[which] === i); });
        element.addEventListener("mouseleave", () => { svg.classList.remove("one"); element.classList.remove("chosen"); });
      }
    };
    side(one.rows, picture.queries, gap - 6, "end", 0);
    side(one.columns, picture.keys, width - gap + 6, "start", 1);
    $("lines-help").textContent = `Queries on the left, keys on the right; weights of at least ${FAINTEST}. A token under the pointer shows its own lines alone.`;
  }
  function drawTable(picture, one) {
    const table = $("strongest"), shares = state.mode === "shares" && one.shares;
    table.replaceChildren();
    $("table-title").textContent = shares ? `Largest differences: ${about.other} minus ${about.base}, as a share of what rounding allows` : "Strongest keys";
    const row = (cells, kind, parent) => {
      const line = document.createElement("tr");
      for (const [content, tag] of cells) { const cell = document.createElement(tag); if (tag === "th") cell.scope = kind; cell.append(content); line.append(cell); }
      parent.append(line);
    };
    const body = document.createElement("tbody"), first = document.createElement("thead");
    if (!one.exact) { row([[`This head is shown in blocks of ${picture.block} x ${picture.block}: --layers and --heads choose what is exact.`, "td"]], "row", body); table.append(body); return; }
    row([["query", "th"], ["first", "th"], ["second", "th"], ["third", "th"]], "col", first);
    for (let q = 0; q < one.rows; q++) {
      const start = q * one.columns, keys = [...Array(one.columns).keys()].filter(k => one.open(start + k));
      const size = k => shares ? (one.shares[start + k] === -128 ? 1e9 : Math.abs(one.shares[start + k])) : one.weights[start + k];
      keys.sort((a, b) => size(b) - size(a) || a - b);
      const cells = [0, 1, 2].map(place => {
        const k = keys[place];
        if (k === undefined) return [place || keys.length ? "" : "no key", "td"];
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = `${label(picture.keys, k)} ${shares ? share(one.shares[start + k]) : weightText(one.weights[start + k])}`;
        button.title = sentence(picture, one, q, k);
        button.addEventListener("click", () => { look(q, k); openPair(); });
        return [button, "td"];
      });
      row([[label(picture.queries, q), "th"], ...cells], "row", body);
    }
    table.append(first, body);
  }

  // One pair ----------------------------------------------------------------------------------------

  function openPair() {
    if (!head(pictureOf(state.layer), state.slot).exact) return;
    state.pair = true;
    $("pair").hidden = false;
    drawPair();
    $("pair-title").focus();
    $("pair").scrollIntoView({ block: "nearest" });
  }
  function drawPair() {
    const picture = pictureOf(state.layer), one = head(picture, state.slot), { d, at } = picture;
    if (!one.exact) { $("pair").hidden = true; return; }
    const q = one.queries().subarray(state.q * d, (state.q + 1) * d), k = one.keys().subarray(state.k * d, (state.k + 1) * d);
    const products = Array.from(q, (x, i) => x * k[i]), sum = products.reduce((a, b) => a + b, 0);
    $("pair-title").textContent = `Query ${named(picture.queries, state.q)} and key ${named(picture.keys, state.k)}`;
    const score = picture.plain ? `The products add up to about ${three(sum)}; times the scale ${three(picture.scale)} that is about ${three(sum * picture.scale)}, the score before a bias of the mask.` : "This layer's score is another function than the product (additive, or with a softcap): the channels are shown as they are.";
    const near = Object.entries(picture.near).map(([name, ratio]) => ` Every stage of ${name} here, its queries and keys too, is off by at most ${ratio} of what rounding allows.`).join("");
    $("pair-text").textContent = `${score} Weight of ${sentence(picture, one, state.q, state.k)}.${near}`;
    const table = $("channels"), most = Math.max(1e-30, ...products.map(Math.abs).filter(Number.isFinite));
    const line = (parent, tag, cells) => {
      const row = document.createElement("tr");
      cells.forEach((content, i) => { const cell = document.createElement(i && tag === "td" ? "td" : "th"); cell.scope = tag === "th" ? "col" : "row"; if (i && i < 4) cell.className = "number"; cell.append(content); row.append(cell); });
      parent.append(row);
      return row;
    };
    const first = document.createElement("thead"), body = document.createElement("tbody");
    line(first, "th", ["channel", "query", "key", "product", "as a bar: + right, − left"]);
    products.forEach((product, i) => {
      const bar = document.createElement("span");
      const width = Number.isFinite(product) ? 50 * Math.abs(product) / most : 0;
      bar.className = product < 0 ? "minus" : "plus";
      bar.style.cssText = `width:${width}%;margin-left:${product < 0 ? 50 - width : 50}%`;
      line(body, "td", [String(i), digits(q[i], at.queriesSteps[state.slot]), digits(k[i], at.keysSteps[picture.groups[state.slot]]), (product > 0 ? "+" : "") + two(product), bar]).lastChild.className = "product";
    });
    table.replaceChildren(first, body);
  }

  // Choices -----------------------------------------------------------------------------------------

  function redraw() { drawText(); drawGrid(); drawHead(); }
  for (const name of ["sheet", "measure", "mode"]) $(name)?.addEventListener("change", event => { state[name] = name === "sheet" ? +event.target.value : event.target.value; redraw(); });
  $("controls").addEventListener("submit", event => event.preventDefault());
  $("controls").hidden = false;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  redraw();
  document.documentElement.dataset.ready = "true";
})();
