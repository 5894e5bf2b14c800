"use strict";
// The page of a service. All text that comes from elsewhere is set as text, never as HTML.
const ACTIONS = ["answer", "abstain", "unknown", "none"];
const WORDS = { answer: "answered", abstain: "abstained", unknown: "unknown", none: "no policy", bad: "not read" };
const MOST_CARDS = 12, MOST_LINES = 200, EVERY = 2000;
const byId = (id) => document.getElementById(id);
const state = { model: null, info: null, asked: 0, shown: 0, token: sessionStorage.getItem("token") };

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "line", "path", "circle", "text", "title"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "width%") made.style.width = `${value}%`;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (state.token) headers.Authorization = `Bearer ${state.token}`;
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) { showGate(); throw new Error("the service asks for a token"); }
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error || `status ${answer.status}`);
  return value;
}

function showGate() {
  byId("gate").hidden = false;
  byId("main").hidden = true;
  say("token needed", "");
}

function say(text, kind) {
  const status = byId("status");
  status.textContent = text;
  status.className = `status ${kind}`;
}

const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
const short = (value) => value === null ? "∞" : Math.abs(value) >= 1e4 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(1) : value.toFixed(2);

// --- the model ---------------------------------------------------------------------------------
async function begin() {
  const { models } = await ask("/v2/models");
  byId("gate").hidden = true;
  byId("main").hidden = false;
  const wanted = decodeURIComponent(location.hash.slice(1));
  byId("choice").hidden = models.length < 2;
  byId("models").replaceChildren(...models.map((name) => element("option", { value: name }, name)));
  await choose(models.includes(wanted) ? wanted : models[0]);
}

async function choose(name) {
  state.model = name;
  state.shown = state.asked; // what was asked for another model is not shown
  byId("models").value = name;
  state.info = await ask(`/v2/models/${encodeURIComponent(name)}`);
  const { class_names: classes, policy } = state.info.parameters;
  byId("name").textContent = name;
  document.title = `${name} · density-softmax`;
  const few = classes.slice(0, 12).join(", ") + (classes.length > 12 ? ", …" : "");
  byId("about").textContent = `${classes.length} classes: ${few}`;
  byId("promises").replaceChildren(...promisesOf(policy));
  byId("results").replaceChildren();
  byId("problem").hidden = true;
  showInputs();
  showUse();
  await watch();
}

function promisesOf(policy) {
  if (!policy) return [element("li", { class: "none" }, "This model has no policy: export it with policy= to get decisions.")];
  if (!policy.promises.length) return [element("li", { class: "none" }, "The policy of this model promises nothing and answers every input: export it with policy= to get decisions.")];
  return policy.promises.map((text) => element("li", {}, text));
}

const isImages = () => state.info.parameters.normalisation?.kind === "images";
const shape = () => state.info.inputs[0].shape.slice(1);

function columns() {
  const given = state.info.parameters.normalisation;
  if (given?.columns?.length) return given.columns;
  return Array.from({ length: shape()[0] }, (_, number) => `column ${number + 1}`);
}

function showInputs() {
  const table = shape().length === 1, form = byId("row");
  form.hidden = !table;
  byId("drop").hidden = !table && !isImages();
  byId("files").accept = table ? ".csv,text/csv" : "image/*";
  byId("files").multiple = !table;
  byId("drop-text").textContent = table ? "Drop a CSV file here, or press to choose one" : "Drop images here, or press to choose some";
  form.replaceChildren();
  if (!table) return;
  const means = state.info.parameters.normalisation?.mean;
  form.append(...columns().map((name, number) => element("label", {}, element("span", { title: name }, name),
    element("input", { type: "text", inputmode: "decimal", name: `c${number}`, value: means ? String(+means[number].toPrecision(3)) : "0", required: "", autocomplete: "off" }))));
  form.append(element("div", { class: "send" }, element("button", {}, "Predict")));
}

// --- predictions -------------------------------------------------------------------------------
async function predict(body, kind, pictures = []) {
  byId("problem").hidden = true;
  byId("results").setAttribute("aria-busy", "true");
  try {
    const headers = kind ? { "Content-Type": kind } : {};
    const found = await ask(`/predict/${encodeURIComponent(state.model)}`, { method: "POST", body, headers });
    showResults(found.predictions, pictures);
    await watch();
  } catch (error) {
    byId("problem").textContent = error.message;
    byId("problem").hidden = false;
  } finally {
    byId("results").removeAttribute("aria-busy");
  }
}

function send(files) {
  if (!files.length) return;
  if (!isImages()) return predict(files[0], "text/csv");
  const form = new FormData();
  for (const file of files) form.append("file", file, file.name);
  return predict(form, null, Array.from(files, (file) => URL.createObjectURL(file)));
}

function showResults(records, pictures) {
  const results = byId("results");
  if (records.length > MOST_CARDS) results.replaceChildren(tableOf(records));
  else results.replaceChildren(...records.map((record, number) => cardOf(record, pictures[number])));
}

function badge(action) {
  const kind = action || "none";
  return element("span", { class: `badge ${kind}` }, WORDS[kind] || kind);
}

function cardOf(record, picture) {
  const body = element("div", { class: "body" },
    element("div", { class: "head" }, element("span", { class: "label" }, record.label || "no answer"), badge(record.action),
      element("span", { class: "input" }, picture ? record.input : `row ${Number(record.input) + 1}`)));
  const why = reasonOf(record);
  if (why) body.append(element("p", { class: "why" }, why));
  if (record.action !== "bad") {
    body.append(element("div", { class: "measure" },
      element("span", { class: "term" }, "confidence"), meter(record.confidence), element("span", { class: "value" }, percent(record.confidence)),
      ...(record.typicality === undefined ? [] : [element("span", { class: "term" }, "typicality"), scale(record.typicality), element("span", { class: "value" }, percent(record.typicality, record.typicality < 0.01 ? 2 : 1))]),
      ...(record.set ? [element("span", { class: "term" }, "set"), element("ul", { class: "chips" }, ...setOf(record.set))] : [])));
    if (record.contributions) body.append(explanation(record));
  }
  const card = element("article", { class: `card result ${picture ? "image" : "plain"}` });
  if (picture) {
    const image = element("img", { src: picture, alt: record.input });
    image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth < 100));
    card.append(image);
  }
  card.append(body);
  return card;
}

function setOf(names) {
  const all = state.info.parameters.class_names.length;
  if (names.length === all && all > 3) return [element("li", {}, `all ${all} labels`)];
  const shown = names.slice(0, 8).map((name) => element("li", {}, name));
  if (names.length > 8) shown.push(element("li", {}, `and ${names.length - 8} more`));
  return names.length ? shown : [element("li", {}, "no label")];
}

function reasonOf(record) {
  if (record.action === "bad") return record.reason;
  if (record.typicality === undefined) return record.reason || "";
  const strange = `stranger than ${percent(1 - record.typicality, record.typicality < 0.01 ? 2 : 0)} of the known inputs`;
  if (record.action === "unknown") return `${record.reason}: ${strange}`;
  return record.reason || (record.typicality < 0.1 ? strange : "like the known inputs");
}

function meter(share, kind = "") {
  return element("span", { class: "meter" }, element("i", { class: kind, "width%": Math.max(0, Math.min(100, 100 * share)) }));
}

// A logarithmic scale of known inputs: the share of them that are at least as unusual.
function scale(typicality) {
  const least = 1e-3, width = 300, at = (share) => width * (1 - Math.log(Math.max(share, least)) / Math.log(least));
  const drawing = element("svg", { class: "scale", viewBox: `0 0 ${width} 34`, role: "img", "aria-label": `typicality ${percent(typicality, 2)}` });
  drawing.append(element("rect", { class: "track", x: 0, y: 6, width, height: 8, rx: 4 }));
  const limit = state.info.parameters.policy?.false_alarms;
  if (limit) drawing.append(element("rect", { class: "zone", x: 0, y: 6, width: at(limit), height: 8, rx: 4 }, element("title", {}, `unknown up to ${percent(limit)}`)));
  for (const [share, text, anchor] of [[1e-3, "0.1 %", "start"], [1e-2, "1 %", "middle"], [1e-1, "10 %", "middle"], [1, "100 %", "end"]])
    drawing.append(element("text", { x: at(share), y: 30, "text-anchor": anchor }, text));
  drawing.append(element("circle", { class: "mark", cx: Math.min(width - 6, Math.max(6, at(typicality))), cy: 10, r: 7 }));
  return drawing;
}

function explanation(record) {
  const entries = Object.entries(record.contributions).sort((a, b) => (b[1] ?? Infinity) - (a[1] ?? Infinity));
  const most = Math.max(...entries.map(([, value]) => Math.abs(value ?? 0)), 1e-9);
  const list = element("div", { class: "experts" });
  for (const [name, value] of entries)
    list.append(element("span", {}, name), meter(value === null ? 1 : Math.abs(value) / most, value === null || value > 0 ? "up" : ""), element("span", { class: "value" }, short(value)));
  return element("details", {}, element("summary", {}, "Where it looks unusual"), element("p", { class: "why" }, `What each expert adds to the epistemic score of ${short(record.epistemic)}; more is less known.`), list);
}

function tableOf(records) {
  const counts = {};
  for (const record of records) counts[record.action || "none"] = (counts[record.action || "none"] || 0) + 1;
  const said = Object.entries(counts).map(([action, count]) => `${count} ${WORDS[action]}`).join(", ");
  const head = element("tr", {}, ...["row", "label", "confidence", "typicality", "decision"].map((name, number) => element("th", { scope: "col", class: number > 1 && number < 4 ? "number" : "" }, name)));
  const lines = records.slice(0, MOST_LINES).map((record) => element("tr", {},
    element("td", {}, String(Number.isNaN(Number(record.input)) ? record.input : Number(record.input) + 1)), element("td", {}, record.label || "–"),
    element("td", { class: "number" }, record.confidence === undefined ? "–" : percent(record.confidence)),
    element("td", { class: "number" }, record.typicality === undefined ? "–" : percent(record.typicality)),
    element("td", { title: record.reason || "" }, badge(record.action))));
  const more = records.length > MOST_LINES ? element("p", { class: "why" }, `and ${records.length - MOST_LINES} more rows; curl gives all of them`) : null;
  return element("div", { class: "card" }, element("p", { class: "summary" }, `${records.length} inputs: ${said}`),
    element("div", { class: "scroll", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines))), more);
}

// --- the monitor -------------------------------------------------------------------------------
// Answers can overtake each other: one that was asked for before what is shown is out of date.
async function watch() {
  const number = state.asked += 1;
  const found = await ask(`/monitor/${encodeURIComponent(state.model)}`);
  if (number <= state.shown) return;
  state.shown = number;
  showMonitor(found);
}

async function acknowledge() {
  const found = await ask(`/monitor/${encodeURIComponent(state.model)}/acknowledge`, { method: "POST" });
  state.shown = state.asked;
  showMonitor(found);
}

function showMonitor(found) {
  showVerdict(found.monitor);
  const { seconds, intervals } = found.timeline;
  byId("evidence-figure").hidden = !found.monitor;
  if (found.monitor) drawEvidence(intervals, found.monitor);
  drawDecisions(intervals, seconds);
  byId("legend").replaceChildren(...Object.entries(found.counts).map(([action, count]) => element("li", { class: action || "none" }, `${WORDS[action || "none"]} ${count.toLocaleString("en")}`)));
  showUnknown(found.unknown);
}

function showVerdict(monitor) {
  byId("alarm").hidden = !monitor?.alarm;
  if (!monitor) {
    say("serving", "calm");
    byId("verdict").textContent = "This model has no calibration samples to compare with.";
    byId("facts").replaceChildren();
    return;
  }
  const { alarm, inputs, accuracy } = monitor;
  say(alarm ? "the stream has changed" : "no change seen", alarm ? "alarm" : "calm");
  byId("verdict").replaceChildren(element("strong", {}, alarm ? "The stream has changed." : "No sign of a change."),
    alarm ? ` The promises of the policy may not have held since ${new Date(1000 * monitor.alarmed).toLocaleString()}.` : ` The chance of a false alarm, ever, is at most ${percent(monitor.false_alarms, 0)}.${monitor.acknowledged ? ` The monitor started over ${new Date(1000 * monitor.acknowledged).toLocaleString()}.` : ""}`);
  const facts = { "inputs so far": inputs.toLocaleString("en"), "estimated accuracy": inputs ? `${percent(accuracy.value)} (${percent(accuracy.low)} to ${percent(accuracy.high)})` : "–",
    "accuracy when calibrated": percent(monitor.accuracy_when_calibrated), "moved most": inputs ? Object.entries(monitor.moved).map(([name, value]) => `${name} (evidence ${short(value)})`)[0] : "–" };
  byId("facts").replaceChildren(...Object.entries(facts).flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
}

function frame(id, label) {
  const drawing = byId(id), width = Math.max(drawing.clientWidth, 260), height = 144;
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.setAttribute("aria-label", label);
  drawing.replaceChildren(element("line", { class: "axis", x1: 0, x2: width, y1: height - 18, y2: height - 18 }));
  return { drawing, width, bottom: height - 18 };
}

const clock = (time) => new Date(1000 * time).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function times(drawing, width, bottom, intervals) {
  if (!intervals.length) return drawing.append(element("text", { x: width / 2, y: bottom / 2, "text-anchor": "middle" }, "no inputs yet"));
  drawing.append(element("text", { x: 0, y: bottom + 14 }, clock(intervals[0][0])), element("text", { x: width, y: bottom + 14, "text-anchor": "end" }, clock(intervals.at(-1)[0])));
}

function drawEvidence(intervals, monitor) {
  const points = intervals.filter(([, each]) => each.evidence !== null).map(([start, each]) => [start, each.evidence]);
  const { drawing, width, bottom } = frame("evidence", `Evidence ${short(monitor.evidence)}; an alarm at ${short(monitor.threshold)}`);
  const values = points.map(([, value]) => value);
  const top = 1.15 * Math.max(monitor.threshold, ...values), low = Math.min(0, ...values);
  const y = (value) => bottom - (bottom - 8) * (value - low) / (top - low);
  const first = points.length ? points[0][0] : 0, span = points.length ? Math.max(points.at(-1)[0] - first, 1) : 1;
  const x = (time) => width * (time - first) / span;
  drawing.append(element("line", { class: "limit", x1: 0, x2: width, y1: y(monitor.threshold), y2: y(monitor.threshold) }),
    element("text", { x: width, y: y(monitor.threshold) - 5, "text-anchor": "end" }, "alarm"));
  if (points.length) {
    const shown = points.length > 1 ? points : [points[0], [first + span, points[0][1]]];
    const line = shown.map(([time, value], number) => `${number ? "L" : "M"}${x(time).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    drawing.append(element("path", { class: "area", d: `${line}L${x(shown.at(-1)[0])} ${bottom}L0 ${bottom}Z` }), element("path", { class: "curve", d: line }));
  }
  times(drawing, width, bottom, intervals);
}

function drawDecisions(intervals, seconds) {
  const { drawing, width, bottom } = frame("decisions", "Inputs by decision over time");
  times(drawing, width, bottom, intervals);
  if (!intervals.length) return;
  const first = intervals[0][0], slots = Math.max((intervals.at(-1)[0] - first) / seconds + 1, 12);
  const most = Math.max(...intervals.map(([, each]) => Object.values(each.counts).reduce((a, b) => a + b, 0)), 1);
  const step = width / slots;
  for (const [start, each] of intervals) {
    let y = bottom;
    for (const action of ACTIONS) {
      const height = (bottom - 8) * (each.counts[action === "none" ? "" : action] || 0) / most;
      if (!height) continue;
      y -= height;
      drawing.append(element("rect", { class: action, x: (start - first) / seconds * step, y, width: Math.max(step - 1.5, 1), height, rx: Math.min(2, step / 4) }));
    }
  }
}

function showUnknown(inputs) {
  byId("unknown-card").hidden = !inputs.length;
  byId("unknown").classList.toggle("rows", inputs.some((each) => !each.image));
  byId("unknown").replaceChildren(...inputs.map((each) => {
    const when = clock(each.time), said = `${each.label}? ${percent(each.typicality, 2)}, ${when}`;
    if (each.image) return element("li", {}, element("img", { src: each.image, alt: `unknown input, ${said}` }), said);
    const values = each.values.map((value, number) => `${each.columns[number] ? `${each.columns[number]} ` : ""}${short(value)}`).join(", ");
    return element("li", {}, element("code", {}, values), element("br"), said);
  }));
}

function showUse() {
  const address = `${location.origin}/predict/${state.model}`, token = state.token ? " -H \"Authorization: Bearer $TOKEN\"" : "";
  const row = JSON.stringify({ rows: [Object.fromEntries(columns().slice(0, 40).map((name) => [name, 0]))] });
  byId("curl").textContent = isImages() ? `curl${token} -F file=@photo.jpg ${address}`
    : `curl${token} -H "Content-Type: text/csv" --data-binary @rows.csv ${address}\n` + (shape().length === 1 ? `curl${token} -H "Content-Type: application/json" -d '${row}' ${address}` : "");
}

// --- events ------------------------------------------------------------------------------------
byId("gate").addEventListener("submit", (event) => {
  event.preventDefault();
  state.token = byId("token").value.trim();
  sessionStorage.setItem("token", state.token);
  start();
});
byId("models").addEventListener("change", (event) => { location.hash = encodeURIComponent(event.target.value); choose(event.target.value); });
byId("row").addEventListener("submit", (event) => {
  event.preventDefault();
  const fields = new FormData(event.target), numbers = columns().map((_, number) => Number(String(fields.get(`c${number}`)).replace(",", ".")));
  const named = state.info.parameters.normalisation?.columns?.length;
  const row = named ? Object.fromEntries(columns().map((name, number) => [name, Number.isFinite(numbers[number]) ? numbers[number] : String(fields.get(`c${number}`))])) : numbers;
  predict(JSON.stringify({ rows: [row] }), "application/json");
});
byId("acknowledge").addEventListener("click", () => acknowledge().catch((error) => say(error.message, "alarm")));
byId("files").addEventListener("change", (event) => { send(event.target.files); event.target.value = ""; });
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
byId("drop").addEventListener("dragover", () => byId("drop").classList.add("over"));
byId("drop").addEventListener("dragleave", () => byId("drop").classList.remove("over"));
document.addEventListener("drop", (event) => { byId("drop").classList.remove("over"); if (state.info) send(event.dataTransfer.files); });
setInterval(() => { if (!document.hidden && state.info && byId("gate").hidden) watch().catch((error) => say(error.message.includes("token") ? "token needed" : "no connection", "")); }, EVERY);

function start() { begin().catch((error) => { if (byId("gate").hidden) say(error.message, "alarm"); }); }
start();
