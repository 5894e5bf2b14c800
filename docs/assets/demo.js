// The demo page: exported models in the browser, by onnxruntime-web. No server, no build step.
(() => {
  "use strict";

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const percent = (value) => `${(100 * value).toFixed(value > 0.999 && value < 1 ? 2 : 1)} %`;
  const here = document.currentScript.src;

  const held = (parts, type) => URL.createObjectURL(new Blob(parts, { type }));

  function loadScript(name) {
    return new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL(name, here);
      script.onload = resolve;
      script.onerror = () => reject(new Error("this copy of the site was built without it"));
      document.head.append(script);
    });
  }

  async function openRuntime() {
    await loadScript("onnxruntime-web/ort.wasm.min.js");
    await loadScript("onnxruntime-web/runtime.js");
    const { loader, wasm } = window.demoRuntime;
    const packed = new Blob([bytes(wasm)]).stream();
    const unpacked = packed.pipeThrough(new DecompressionStream("gzip"));
    const { env } = window.ort;
    env.wasm.numThreads = 1; // more need headers that plain file servers do not send
    // A page that was opened as a file may load what it holds, but no other files.
    env.wasm.wasmPaths = {
      mjs: held([loader], "text/javascript"),
      wasm: held([await new Response(unpacked).arrayBuffer()], "application/wasm"),
    };
  }

  // An exported model with what the page knows about it.
  class Model {
    static async open(facts) {
      const model = new Model();
      model.facts = facts;
      const graphs = [facts.graph, facts.plain].map((graph) =>
        window.ort.InferenceSession.create(bytes(graph), { executionProviders: ["wasm"] }),
      );
      [model.session, model.plain] = await Promise.all(graphs);
      return model;
    }

    // Probabilities, epistemic uncertainty and typicality of inputs that follow each other.
    async ask(values) {
      const shape = this.facts.input_shape;
      const count = values.length / shape.reduce((a, b) => a * b, 1);
      const x = new window.ort.Tensor("float32", Float32Array.from(values), [count, ...shape]);
      const { probs, epistemic } = await this.session.run({ x });
      const plain = await this.plain.run({ x });
      const classes = this.facts.class_names.length;
      return Array.from({ length: count }, (_, row) => ({
        probs: Array.from(probs.data.slice(row * classes, (row + 1) * classes)),
        plain: Array.from(plain.probs.data.slice(row * classes, (row + 1) * classes)),
        epistemic: epistemic.data[row],
        typicality: this.typicality(epistemic.data[row]),
      }));
    }

    // The p-value: the share of held-out inputs that are at least as strange.
    typicality(epistemic) {
      const { count, values, above } = this.facts.typical;
      const lower = values.filter((value) => value < epistemic).length;
      return (1 + (lower === 0 ? count : above[lower - 1])) / (count + 1);
    }
  }

  // Runs the latest request once the one before has ended; those between are dropped.
  function latest(work) {
    let running = false;
    let waiting = false;
    return async function request() {
      waiting = true;
      if (running) return;
      running = true;
      while (waiting) {
        waiting = false;
        await work();
      }
      running = false;
    };
  }

  function bar(name, value) {
    const filled = `<div class="demo-bar" aria-hidden="true"><div style="width: ${100 * value}%"></div></div>`;
    return `<div>${name}: <strong>${percent(value)}</strong></div>${filled}`;
  }

  const FALSE_ALARMS = 0.05;

  function answerText(model, answer) {
    const best = Math.max(...answer.probs);
    const known = answer.typicality > FALSE_ALARMS;
    const label = model.facts.class_names[answer.probs.indexOf(best)];
    return (
      `<p class="demo-label">Label <strong>${label}</strong>, ` +
      `${known ? "a known input" : "<strong>unknown</strong> input"}</p>` +
      bar("Confidence", best) +
      bar("Plain softmax", Math.max(...answer.plain)) +
      bar("Typicality", answer.typicality)
    );
  }

  const colour = (element, name) => getComputedStyle(element).getPropertyValue(name).trim();

  // Calls `change` when the site's colours change.
  function onColours(change) {
    const watch = new MutationObserver(change);
    watch.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  }

  const ARROWS = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
  };

  // Where a pointer is in a canvas, from 0 to 1.
  function place(canvas, event) {
    const box = canvas.getBoundingClientRect();
    const inside = (value) => Math.min(1, Math.max(0, value));
    return [
      inside((event.clientX - box.left) / box.width),
      inside((event.clientY - box.top) / box.height),
    ];
  }

  // A map of two moons with a point to move.
  const EXTENT = { left: -2.5, width: 6, top: 2.5, height: 4.5 };
  const CELLS = { across: 96, down: 72 };

  async function startMoons(root, model) {
    const canvas = root.querySelector("canvas");
    const context = canvas.getContext("2d");
    let point = [0.2, 0.3]; // from 0 to 1

    const position = ([across, down]) => [
      EXTENT.left + across * EXTENT.width,
      EXTENT.top - down * EXTENT.height,
    ];
    const cells = [];
    for (let row = 0; row < CELLS.down; row++) {
      for (let column = 0; column < CELLS.across; column++) {
        cells.push(...position([(column + 0.5) / CELLS.across, (row + 0.5) / CELLS.down]));
      }
    }
    const surface = await model.ask(cells);

    function shadeOf(answer, shade) {
      if (shade === "typicality") return ["--demo-typical", 0.8 * answer.typicality];
      const probs = shade === "plain" ? answer.plain : answer.probs;
      const best = Math.max(...probs);
      return [`--demo-${probs.indexOf(best)}`, 1.4 * (best - 0.5)];
    }

    function drawSurface() {
      const shade = root.querySelector("input:checked").value;
      const [width, height] = [canvas.width / CELLS.across, canvas.height / CELLS.down];
      surface.forEach((answer, index) => {
        const [name, alpha] = shadeOf(answer, shade);
        context.globalAlpha = alpha;
        context.fillStyle = colour(root, name);
        const [column, row] = [index % CELLS.across, Math.floor(index / CELLS.across)];
        context.fillRect(column * width, row * height, width, height);
      });
      context.globalAlpha = 1;
    }

    function drawDots() {
      model.facts.points.forEach(([x, y], index) => {
        const across = ((x - EXTENT.left) / EXTENT.width) * canvas.width;
        const down = ((EXTENT.top - y) / EXTENT.height) * canvas.height;
        context.fillStyle = colour(root, `--demo-${model.facts.labels[index]}`);
        context.strokeStyle = colour(root, "--md-default-bg-color");
        context.beginPath();
        context.arc(across, down, 3, 0, 7);
        context.fill();
        context.stroke();
      });
    }

    function drawPoint() {
      const [across, down] = [point[0] * canvas.width, point[1] * canvas.height];
      context.lineWidth = 3;
      context.strokeStyle = colour(root, "--md-default-fg-color");
      context.fillStyle = colour(root, "--md-default-bg-color");
      context.beginPath();
      context.arc(across, down, 8, 0, 7);
      context.fill();
      context.stroke();
      context.lineWidth = 1;
    }

    // The map below the point is drawn once for each shade and scheme.
    let map = null;
    function draw() {
      context.clearRect(0, 0, canvas.width, canvas.height);
      if (map === null) {
        drawSurface();
        drawDots();
        map = context.getImageData(0, 0, canvas.width, canvas.height);
      } else {
        context.putImageData(map, 0, 0);
      }
      drawPoint();
    }
    const redraw = () => {
      map = null;
      draw();
    };

    const show = latest(async () => {
      const [answer] = await model.ask(position(point));
      const [x, y] = position(point).map((value) => value.toFixed(2));
      root.querySelector(".demo-answer").innerHTML =
        answerText(model, answer) + `<p>at (${x}, ${y})</p>`;
    });
    function move(to) {
      point = to.map((value) => Math.min(1, Math.max(0, value)));
      draw();
      return show();
    }
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(place(canvas, event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) move(place(canvas, event));
    });
    canvas.addEventListener("keydown", (event) => {
      if (!(event.key in ARROWS)) return;
      event.preventDefault();
      const step = event.shiftKey ? 0.005 : 0.025;
      move(ARROWS[event.key].map((way, axis) => point[axis] + way * step));
    });
    root.querySelector("fieldset").addEventListener("change", redraw);
    onColours(redraw);
    await move(point);
  }

  // A field to draw a digit in. Strokes become 8×8 counts from 0 to 16, as the data were made.
  const FINE = 32;
  const BLOCK = 4;
  const SIDE = FINE / BLOCK;
  const PEN = 3.2; // pixels of the 32

  // The points of strokes in the fine picture: centred, and as large as it.
  function fitted(strokes) {
    const [xs, ys] = [0, 1].map((axis) => strokes.flat().map((point) => point[axis]));
    const ends = [xs, ys].map((values) => [Math.min(...values), Math.max(...values)]);
    const size = Math.max(...ends.map(([low, high]) => high - low), 0.25);
    const scale = (FINE - PEN) / size;
    return strokes.map((stroke) =>
      stroke.map((point) =>
        point.map((value, axis) => FINE / 2 + scale * (value - (ends[axis][0] + ends[axis][1]) / 2)),
      ),
    );
  }

  function trace(context, strokes, width) {
    context.lineCap = context.lineJoin = "round";
    context.lineWidth = width;
    for (const stroke of strokes) {
      context.beginPath();
      context.moveTo(...stroke[0]);
      stroke.forEach((point) => context.lineTo(...point));
      context.stroke();
    }
  }

  function pixelsOf(strokes) {
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = FINE;
    const context = canvas.getContext("2d", { willReadFrequently: true });
    trace(context, fitted(strokes), PEN);
    const { data } = context.getImageData(0, 0, FINE, FINE);
    const counts = new Array(SIDE * SIDE).fill(0);
    for (let index = 0; index < FINE * FINE; index++) {
      const [row, column] = [Math.floor(index / FINE), index % FINE];
      const block = Math.floor(row / BLOCK) * SIDE + Math.floor(column / BLOCK);
      counts[block] += data[4 * index + 3] >= 128 ? 1 : 0;
    }
    return counts;
  }

  function paintPixels(canvas, pixels, ink) {
    const context = canvas.getContext("2d");
    const size = canvas.width / SIDE;
    context.clearRect(0, 0, canvas.width, canvas.height);
    context.fillStyle = ink;
    pixels.forEach((count, index) => {
      context.globalAlpha = count / (BLOCK * BLOCK);
      context.fillRect((index % SIDE) * size, Math.floor(index / SIDE) * size, size, size);
    });
    context.globalAlpha = 1;
  }

  async function startDigits(root, model) {
    const canvas = root.querySelector("canvas");
    const context = canvas.getContext("2d");
    const answerBox = root.querySelector(".demo-answer");
    const ink = () => colour(root, "--md-default-fg-color");
    let strokes = [];
    let pixels = null; // what the network reads
    let drawn = true; // by hand, and not a picture that a button brought
    let pen = { at: [0.5, 0.2], down: false };
    let next = 2; // of the test digits, less one

    function drawPen() {
      context.fillStyle = colour(root, "--demo-1");
      context.beginPath();
      context.arc(pen.at[0] * canvas.width, pen.at[1] * canvas.height, pen.down ? 8 : 4, 0, 7);
      context.fill();
    }

    function draw() {
      context.clearRect(0, 0, canvas.width, canvas.height);
      if (drawn) {
        const large = strokes.map((stroke) => stroke.map(([x, y]) => [x * canvas.width, y * canvas.height]));
        context.strokeStyle = ink();
        trace(context, large, 18);
      } else {
        paintPixels(canvas, pixels, ink());
      }
      if (document.activeElement === canvas) drawPen();
    }

    const show = latest(async () => {
      if (pixels === null) {
        answerBox.innerHTML = "<p>Draw a digit.</p>";
        return;
      }
      const [answer] = await model.ask(pixels.map((count) => count / (BLOCK * BLOCK)));
      answerBox.innerHTML = answerText(model, answer) + '<canvas class="demo-seen" width="64" height="64"></canvas>';
      const seen = answerBox.querySelector("canvas");
      seen.setAttribute("aria-hidden", "true");
      paintPixels(seen, pixels, ink());
    });
    function changed(found) {
      pixels = found;
      draw();
      return show();
    }
    function begin(at) {
      strokes = drawn ? strokes : [];
      drawn = true;
      strokes.push([at]);
      return changed(pixelsOf(strokes));
    }
    function go(at) {
      strokes.at(-1).push(at);
      return changed(pixelsOf(strokes));
    }

    const does = {
      clear() {
        strokes = [];
        drawn = true;
        return changed(null);
      },
      digit() {
        drawn = false;
        next = (next + 1) % model.facts.digits.length;
        return changed(model.facts.digits[next]);
      },
      invert() {
        if (pixels === null) return null;
        drawn = false;
        return changed(pixels.map((count) => BLOCK * BLOCK - count));
      },
      noise() {
        drawn = false;
        return changed(Array.from({ length: SIDE * SIDE }, () => Math.floor(Math.random() * 17)));
      },
    };
    root.querySelectorAll("button").forEach((button) => {
      button.addEventListener("click", () => does[button.dataset.do]());
    });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      begin(place(canvas, event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (canvas.hasPointerCapture(event.pointerId)) go(place(canvas, event));
    });
    canvas.addEventListener("keydown", (event) => {
      if (event.key === " ") {
        event.preventDefault();
        pen = { ...pen, down: !pen.down };
        if (pen.down) begin(pen.at);
        else draw();
      } else if (event.key in ARROWS) {
        event.preventDefault();
        const moved = ARROWS[event.key].map((way, axis) => pen.at[axis] + way * 0.05);
        pen.at = moved.map((value) => Math.min(1, Math.max(0, value)));
        if (pen.down) go(pen.at);
        else draw();
      }
    });
    canvas.addEventListener("focus", draw);
    canvas.addEventListener("blur", () => {
      pen.down = false;
      draw();
    });
    onColours(() => {
      draw();
      show();
    });
    await does.digit();
  }

  const STARTS = { two_moons: startMoons, digits: startDigits };

  async function start() {
    const status = document.getElementById("demo-status");
    const models = {};
    try {
      await openRuntime();
      for (const [name, facts] of Object.entries(window.demoModels)) {
        models[name] = await Model.open(facts);
        await STARTS[name](document.getElementById(`demo-${name}`), models[name]);
      }
      status.hidden = true;
    } catch (error) {
      status.textContent = `The runtime onnxruntime-web cannot be loaded: ${error.message}.`;
    }
    return models;
  }

  // A promise of the models by name, for the browser's console and for tests.
  window.demo = start();
})();
