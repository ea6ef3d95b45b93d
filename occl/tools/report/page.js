"use strict";
const meta = JSON.parse(document.getElementById("meta").textContent);
const byId = (id) => document.getElementById(id);
const NONE = -1;  // in a column of times: this did not happen

// ---- words

function duration(us) {
  for (const [unit, size] of [["s", 1e6], ["ms", 1e3], ["µs", 1]])
    if (Math.abs(us) >= size) return (us / size).toPrecision(Math.abs(us) >= 999.5 * size ? 4 : 3) + " " + unit;
  return Math.round(us * 1000) + " ns";
}
function size(bytes) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (bytes < 1024) return +bytes.toPrecision(bytes >= 1000 ? 4 : 3) + " " + unit;
    bytes /= 1024;
  }
  return bytes.toPrecision(3) + " TiB";
}
const percent = (part) => Math.round(100 * part) + " %";
function element(name, text, more = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return Object.assign(made, more);
}

// ---- operations, by column

let ops, rows, meetings;

async function load() {
  const packed = Uint8Array.from(atob(byId("columns").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = await new Response(stream).arrayBuffer();
  ops = {};
  for (const { name, type, at, count } of meta.columns) ops[name] = new globalThis[type](bytes, at, count);
  ops.count = ops.row.length;
  meetings = new Map();
  rows = meta.rows.map(() => ({ ops: [], lanes: 1, ends: [] }));
  ops.lane = new Uint16Array(ops.count);
  for (let i = 0; i < ops.count; i++) {  // in the order in which they were called
    const row = rows[ops.row[i]];
    let lane = row.ends.findIndex((end) => end <= ops.called[i]);
    if (lane < 0) lane = row.ends.length < 6 ? row.ends.length : 5;
    row.ends[lane] = stop(i);
    ops.lane[i] = lane;
    row.ops.push(i);
    const key = meetingOf(i);
    if (!meetings.has(key)) meetings.set(key, []);
    meetings.get(key).push(i);
  }
  for (const row of rows) {
    row.lanes = Math.max(1, row.ends.length);
    row.until = new Float64Array(row.ops.length);  // the latest end up to each operation
    let latest = 0;
    row.ops.forEach((i, n) => (row.until[n] = latest = Math.max(latest, stop(i))));
  }
}
const isMessage = (i) => ops.kind[i] >= meta.messages_from;
const meetingOf = (i) => (isMessage(i) || ops.group[i] < 0 ? "op" + i : ops.group[i] + "/" + ops.number[i]);
const stop = (i) => ops.called[i] + ops.took[i];
const at = (i, column) => (ops[column][i] < 0 ? null : ops.called[i] + ops[column][i]);
const bad = (i) => ops.progress[i] !== 4;
const title = (i) => `${meta.kinds[ops.kind[i]]} #${ops.number[i]}`;
const groupOf = (i) => (ops.group[i] < 0 ? "a group that is not known" : meta.groups[ops.group[i]]);
const label = (row) => (row < 0 ? "" : meta.rows[row].label);

// ---- the time line

const canvas = byId("line"), paint = canvas.getContext("2d");
const LEFT = 96, TOP = 24;
const END = 1.01 * meta.duration;  // what happens last is not at the edge
let view = { from: 0, to: END }, selected = null, colours, laneHeight, tops, height;

function measure() {
  const style = getComputedStyle(document.documentElement);
  colours = {};
  for (const name of ["back", "text", "dim", "line", "panel", "mark", "waiting", "moving", "message", "queued", "bad"])
    colours[name] = style.getPropertyValue("--" + name).trim();
  laneHeight = rows.length <= 8 ? 16 : rows.length <= 24 ? 12 : 8;
  let y = TOP;
  tops = rows.map((row) => {
    const top = y;
    y += row.lanes * laneHeight + 6;
    return top;
  });
  height = y + 2;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = height * ratio;
  paint.setTransform(ratio, 0, 0, ratio, 0, 0);
}
const width = () => canvas.clientWidth - LEFT;
const toX = (us) => LEFT + ((us - view.from) / (view.to - view.from)) * width();
const toTime = (x) => view.from + ((x - LEFT) / width()) * (view.to - view.from);

function step(span) {
  const rough = span / 8, unit = 10 ** Math.floor(Math.log10(rough));
  return unit * [1, 2, 5, 10].find((f) => f * unit >= rough);
}

function draw() {
  paint.fillStyle = colours.back;
  paint.fillRect(0, 0, canvas.clientWidth, height);
  paint.font = "12px system-ui, sans-serif";
  paint.textBaseline = "middle";
  const by = step(view.to - view.from);
  for (let t = Math.ceil(view.from / by) * by; t <= view.to; t += by) {
    paint.fillStyle = colours.line;
    paint.fillRect(Math.round(toX(t)), TOP - 6, 1, height);
    paint.fillStyle = colours.dim;
    if (toX(t) < canvas.clientWidth - 60) paint.fillText(t === 0 ? "0" : duration(t), toX(t) + 3, 9);
  }
  rows.forEach((row, n) => {
    paint.save();
    paint.beginPath();
    paint.rect(LEFT, tops[n] - 2, width(), row.lanes * laneHeight + 6);
    paint.clip();
    drawBlocks(n);
    drawRow(row, n);
    paint.restore();
    paint.fillStyle = colours.text;
    paint.fillText(meta.rows[n].label, 6, tops[n] + laneHeight / 2, LEFT - 10);
    paint.fillStyle = colours.line;
    paint.fillRect(0, tops[n] + row.lanes * laneHeight + 2, canvas.clientWidth, 1);
  });
  drawSelected();
}

function first(row) {  // of those that may be visible
  let low = 0, high = row.ops.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.until[middle] < view.from) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// Operations that are summed up because there are too many to keep.
function drawBlocks(n) {
  for (const [row, from, to, , waiting] of meta.blocks) {
    if (row !== n || to < view.from || from > view.to) continue;
    const x = toX(from), wide = Math.max(1, toX(to) - x);
    paint.globalAlpha = 0.35;
    paint.fillStyle = colours.moving;
    paint.fillRect(x, tops[n], wide, laneHeight);
    paint.fillStyle = colours.waiting;
    paint.fillRect(x, tops[n] + laneHeight * (1 - waiting), wide, laneHeight * waiting);
    paint.globalAlpha = 1;
  }
}

function drawRow(row, n) {
  const drawn = [];  // by lane: up to which pixel there are narrow operations
  for (let k = first(row); k < row.ops.length && ops.called[row.ops[k]] <= view.to; k++) {
    const i = row.ops[k];
    const x = toX(ops.called[i]), end = toX(stop(i)), lane = ops.lane[i];
    if (end < LEFT) continue;
    const y = tops[n] + lane * laneHeight, tall = laneHeight - 3;
    if (end - x < 1.5) {
      const pixel = Math.floor(x), shade = ops.wait[i] * 2 > ops.took[i] ? 1 : 2;
      if (drawn[lane] === pixel * 4 + shade && !bad(i)) continue;
      drawn[lane] = pixel * 4 + shade;
      paint.fillStyle = bad(i) ? colours.bad : shade === 1 ? colours.waiting : isMessage(i) ? colours.message : colours.moving;
      paint.fillRect(pixel, shade === 1 ? y + tall / 2 : y, 1, shade === 1 ? tall / 2 : tall);
      continue;
    }
    const arrived = at(i, "arrived"), met = at(i, "met");
    paint.fillStyle = colours.queued;
    paint.fillRect(x, y + tall / 2, toX(arrived ?? stop(i)) - x, 2);
    if (arrived !== null) {
      const waits = toX(arrived + ops.wait[i]);
      paint.fillStyle = colours.waiting;
      if (ops.wait[i] > 0) paint.fillRect(toX(arrived), y + tall / 2, Math.max(1, waits - toX(arrived)), tall / 2);
      if (met !== null || !isMessage(i)) {
        const begin = met === null ? waits : Math.max(waits, toX(met));
        paint.fillStyle = bad(i) ? colours.bad : isMessage(i) ? colours.message : colours.moving;
        if (met !== null) paint.fillRect(begin, y, Math.max(1, end - begin), tall);
      }
    }
    if (bad(i)) {
      paint.fillStyle = colours.bad;
      paint.fillRect(Math.max(LEFT, end - 3), y, 3, tall);
    }
    const blocked = at(i, "waited");
    if (blocked !== null && blocked < stop(i)) {
      paint.fillStyle = colours.mark;
      paint.fillRect(toX(blocked), y + tall, end - toX(blocked), 1.5);
    }
    if (met !== null && laneHeight > 11 && end - toX(met) > 90) {
      paint.fillStyle = colours.back;
      paint.fillText(title(i), Math.max(LEFT, toX(met)) + 4, y + tall / 2 + 0.5, end - toX(met) - 8);
    }
  }
}

function drawSelected() {
  if (selected === null) return;
  paint.strokeStyle = colours.mark;
  const points = [];
  for (const i of meetings.get(meetingOf(selected))) {
    const y = tops[ops.row[i]] + ops.lane[i] * laneHeight;
    const x = Math.max(LEFT, toX(ops.called[i])), end = Math.min(canvas.clientWidth, toX(stop(i)));
    if (end < LEFT || x > canvas.clientWidth) continue;
    paint.lineWidth = 2;
    paint.strokeRect(x - 1, y - 2, Math.max(3, end - x + 2), laneHeight + 1);
    const arrived = at(i, "arrived");
    if (arrived !== null) points.push([toX(arrived), y + laneHeight / 2]);
  }
  if (points.length < 2) return;
  points.sort((a, b) => a[1] - b[1]);
  paint.lineWidth = 1;
  paint.setLineDash([3, 3]);
  paint.beginPath();
  points.forEach(([x, y]) => paint.lineTo(Math.max(LEFT, x), y));
  paint.stroke();
  paint.setLineDash([]);
}

let asked = false;
function redraw() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    draw();
  });
}

function look(from, to) {
  const span = Math.min(Math.max(to - from, 0.05), END);
  from = Math.min(Math.max(0, from), END - span);
  view = { from, to: from + span };
  redraw();
}
function zoom(factor, x = LEFT + width() / 2) {
  const t = toTime(x);
  look(t - (t - view.from) * factor, t + (view.to - t) * factor);
}
const shift = (part) => look(view.from + part * (view.to - view.from), view.to + part * (view.to - view.from));

function hit(x, y) {
  const n = rows.findIndex((row, k) => y >= tops[k] - 2 && y < tops[k] + row.lanes * laneHeight + 4);
  if (n < 0 || x < LEFT) return null;
  const lane = Math.min(rows[n].lanes - 1, Math.max(0, Math.floor((y - tops[n]) / laneHeight)));
  let best = null, nearest = 4;
  for (let k = first(rows[n]); k < rows[n].ops.length; k++) {
    const i = rows[n].ops[k];
    if (toX(ops.called[i]) > x + 4) break;
    if (ops.lane[i] !== lane) continue;
    const away = Math.max(toX(ops.called[i]) - x, x - toX(stop(i)), 0);
    if (away < nearest || (away === nearest && best !== null && away === 0)) [best, nearest] = [i, away];
  }
  return best;
}

function listen() {
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, from: view.from, to: view.to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const by = ((drag.x - event.offsetX) / width()) * (drag.to - drag.from);
    if (Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
    if (drag.moved) look(drag.from + by, drag.to + by);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) choose(hit(event.offsetX, event.offsetY));
    drag = null;
  });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, event.offsetX));
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, event.offsetX);
    else if (event.deltaX) shift(event.deltaX / width());
    else return;
    event.preventDefault();
  }, { passive: false });
  const keys = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.6), 0: () => look(0, END),
                 ArrowLeft: () => shift(-0.2), ArrowRight: () => shift(0.2), Escape: () => choose(null) };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || !keys[event.key]) return;
    keys[event.key]();
    event.preventDefault();
  });
  for (const button of document.querySelectorAll("[data-zoom]"))
    button.addEventListener("click", () => keys[{ in: "+", out: "-", all: "0" }[button.dataset.zoom]]());
  window.addEventListener("resize", () => { measure(); redraw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { measure(); redraw(); });
  window.addEventListener("hashchange", followHash);
}

// ---- one operation

function choose(i, go = false) {
  selected = i;
  const box = byId("details");
  box.replaceChildren();
  if (i === null) {
    box.append(element("span", "No operation is selected.", { className: "dim" }));
    history.replaceState(null, "", location.pathname + location.search);
    return redraw();
  }
  const all = meetings.get(meetingOf(i));
  const began = Math.min(...all.map((k) => ops.called[k])), ended = Math.max(...all.map(stop));
  const parts = [groupOf(i)];
  if (ops.bytes[i]) parts.push(`${size(ops.bytes[i])} of ${meta.dtypes[ops.dtype[i]]}`);
  if (ops.reduction[i] >= 0 && meta.reductions[ops.reduction[i]]) parts.push(meta.reductions[ops.reduction[i]]);
  if (isMessage(i)) parts.push(`tag ${ops.detail[i]}`);
  parts.push(`took ${duration(ended - began)} from the first call to the last end`);
  box.append(element("b", title(i)), " " + parts.join(", "));
  const table = element("table");
  fill(table, ["", "called", "arrived", "waited", "for", "moved", "ended", "blocked", ""], all.map((k) => [
    label(ops.row[k]), time(ops.called[k]), time(at(k, "arrived")), ops.wait[k] > 0 ? duration(ops.wait[k]) : "",
    ops.wait[k] > 0 ? label(ops.by[k]) : "", at(k, "met") === null ? "" : duration(stop(k) - at(k, "met")),
    time(at(k, "ended")), at(k, "waited") === null ? "" : duration(Math.max(0, stop(k) - at(k, "waited"))),
    ops.progress[k] === 5 ? "failed" : ops.progress[k] < 4 ? "has not ended" : "",
  ]));
  const scroll = element("div", undefined, { className: "scroll" });
  scroll.append(table);
  box.append(scroll);
  const where = new URLSearchParams({ group: ops.group[i], number: ops.number[i] });
  if (isMessage(i)) where.set("message", i);
  history.replaceState(null, "", "#" + where);
  if (go) look(began - (ended - began) * 2, ended + (ended - began) * 2);
  redraw();
}
const time = (us) => (us === null ? "" : (us / 1000).toFixed(4) + " ms");

function followHash() {
  const where = new URLSearchParams(location.hash.slice(1));
  if (!where.has("number")) return;
  const found = where.has("message") ? [+where.get("message")] : meetings.get(where.get("group") + "/" + where.get("number"));
  if (found?.length && found[0] < ops.count) choose(found[0], true);
}

// ---- tables

/// Cells are texts, or pairs of a text and a number to sort by.
function fill(table, head, lines, pick) {
  table.replaceChildren();
  const top = table.createTHead().insertRow(), body = table.createTBody();
  const put = () => {
    body.replaceChildren();
    for (const line of lines) {
      const row = body.insertRow();
      line.forEach((cell, k) => {
        if (head[k] === undefined) return;
        const [text, , part] = Array.isArray(cell) ? cell : [cell];
        const made = row.insertCell();
        made.textContent = text;
        if (part !== undefined) {
          made.className = "share";
          made.style.setProperty("--part", 100 * part + "%");
        }
      });
      if (!pick) continue;
      row.className = "pick";
      row.tabIndex = 0;
      row.addEventListener("click", () => pick(line));
      row.addEventListener("keydown", (event) => event.key === "Enter" && pick(line));
    }
  };
  head.forEach((name, k) => {
    const cell = element("th", name, { scope: "col" });
    cell.addEventListener("click", () => {
      const value = (line) => (Array.isArray(line[k]) ? line[k][1] : line[k]);
      const order = (a, b) => (typeof value(a) === "number" ? value(b) - value(a) : String(value(a)).localeCompare(value(b)));
      lines.sort(order);
      put();
    });
    top.append(cell);
  });
  put();
}
const span = (us) => [us > 0 ? duration(us) : "", us];
const count = (n) => [n.toLocaleString("en"), n];

function tables() {
  byId("about").append(`${meta.rows.length} processes, ${meta.operations.toLocaleString("en")} operations in ` +
    `${duration(meta.duration)} from ${meta.began}: `, element("code", meta.command));
  for (const text of meta.findings) byId("findings").append(element("li", text));
  for (const text of meta.notes) byId("notes").append(element("li", text));
  byId("notes").hidden = meta.notes.length === 0;
  fill(byId("ranks"), ["rank", "host", "pid", "operations", "in flight", "blocked", "overlap", "waited", "others waited for it"],
    meta.ranks.map((r, n) => [[meta.rows[n].label, n], meta.rows[n].host, [meta.rows[n].pid, meta.rows[n].pid], count(r.operations),
      span(r.in_flight), span(r.blocked), [percent(r.overlap), r.overlap, r.overlap], span(r.waiting), span(r.caused)]));
  fill(byId("slowest"), ["operation", "group", "size", "took", "moving", "ranks waited", "last", "ranks", ""],
    meta.slowest.map((s) => [s.title, s.group_name, [size(s.bytes), s.bytes], span(s.took), span(s.moving), span(s.waiting),
      s.last < 0 ? "" : label(s.last), [s.ranks, s.ranks], s.state, s]), (line) => find(line[9]));
  for (const [id, name] of [["by_group", "group"], ["by_kind", "operation"], ["by_size", "size"]]) {
    const all = meta[id].reduce((sum, share) => sum + share.in_flight, 0) || 1;
    fill(byId(id), [name, "operations", "bytes", "in flight", "waiting", "moving", "blocked", "share"],
      meta[id].map((s, n) => [[s.name, n], count(s.operations), [size(s.bytes), s.bytes], span(s.in_flight), span(s.waiting),
        span(s.moving), span(s.blocked), [percent(s.in_flight / all), s.in_flight, s.in_flight / all]]));
  }
  matrix();
}

function find(slow) {
  const found = slow.index >= 0 ? [slow.index] : meetings.get(slow.group + "/" + slow.number);
  if (found) choose(found[0], true);
  canvas.scrollIntoView({ block: "nearest" });
}

function matrix() {
  const table = byId("matrix"), n = meta.rows.length, dense = n > 16;
  table.className = dense ? "dense" : "";
  const most = Math.max(...meta.waits.flat(), 1e-9);
  const short = (row) => (dense ? row.label.replace("rank ", "") : row.label);
  const top = table.createTHead().insertRow();
  top.append(element("th", ""));
  meta.rows.forEach((row) => top.append(element("th", short(row), { scope: "col" })));
  const body = table.createTBody();
  meta.waits.forEach((line, i) => {
    const row = body.insertRow();
    row.append(element("th", short(meta.rows[i]), { scope: "row" }));
    line.forEach((us, j) => {
      const cell = row.insertCell();
      if (us <= 0) return;
      cell.title = `${meta.rows[i].label} waited ${duration(us)} for ${meta.rows[j].label}`;
      if (!dense) cell.textContent = duration(us);
      cell.style.backgroundColor = `color-mix(in srgb, var(--waiting) ${Math.round(8 + (80 * us) / most)}%, var(--back))`;
      if (us / most > 0.4) cell.style.color = "#000";
    });
  });
}

load().then(() => {
  measure();
  tables();
  listen();
  draw();
  followHash();
  document.documentElement.dataset.ready = "yes";
}, (error) => {
  byId("findings").append(element("li", "The page cannot be shown: " + error));
  document.documentElement.dataset.ready = "failed";
});
