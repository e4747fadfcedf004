"use strict";
/* Runs the model of this folder on photos. The files of the folder are scripts, since a page that is
   opened without a server may read nothing else: each adds the base64 of a gzip to `embedded`. */

const byId = (id) => document.getElementById(id);
const description = globalThis.description ?? {};
const isPanoptic = "categories" in description;
const OUTPUTS = ["labels", "confidences"];
const SEGMENTS = ["ids", "segment_isthing", "segment_classes", "segment_scores"];
const WEIGHTS = { segments: 0.6, confidence: 1, photo: 0 }; // view -> weight of the colours
// A function that makes a vector: (func (result v128) i32.const 0 i8x16.splat)
const SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11];

function say(text, isError = false) {
  byId("status").textContent = text;
  byId("status").className = isError ? "error" : "";
}

/** The first line of what an error says, without the address of a script. */
const reason = (error) => String(error?.message ?? error).split("\n")[0];

/** The bytes of a file of the folder. */
async function unpacked(name, script) {
  try {
    const text = atob(globalThis.embedded[name]);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new Error(`${script} is missing or damaged. Copy the whole folder, or export it again.`);
  }
}

async function loadModel() {
  if (!globalThis.WebAssembly?.validate(new Uint8Array(SIMD)) || !globalThis.DecompressionStream)
    throw new Error("This browser is too old: it has no WebAssembly with SIMD. Use one of 2023 or newer.");
  if (!globalThis.ort) throw new Error("ort.wasm.min.js is missing or damaged. Copy the whole folder, or export it again.");
  const module = await unpacked("ort-wasm-simd-threaded.mjs", "runtime.js");
  ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(new Blob([module], { type: "text/javascript" })) };
  ort.env.wasm.wasmBinary = await unpacked("ort-wasm-simd-threaded.wasm", "runtime.js");
  ort.env.wasm.numThreads = 1; // several need a server that sends headers
  return ort.InferenceSession.create(await unpacked("model.onnx", "model.js"));
}

/** What the model finds in an image: `map` has the number of each pixel's region, `regions` the
    entries of the JSON file by number, with "name" and "color". */
async function predict(session, image) {
  const { width, height, data } = image;
  const pixels = new Uint8Array(3 * width * height);
  for (let i = 0, j = 0; i < data.length; i += 4)
    for (let c = 0; c < 3; c++) pixels[j++] = data[i + c];
  const tensor = new ort.Tensor("uint8", pixels, [height, width, 3]);
  const found = await session.run({ image: tensor }, isPanoptic ? [...OUTPUTS, ...SEGMENTS] : OUTPUTS);
  const values = Object.fromEntries(Object.entries(found).map(([name, value]) => [name, value.data]));
  const regions = new Map();
  if (isPanoptic)
    values.segment_classes.forEach((number, i) => {
      const isThing = Boolean(values.segment_isthing[i]), c = Number(number);
      const score = isThing ? { score: values.segment_scores[i] } : {};
      const category_id = description[isThing ? "thing_ids" : "stuff_ids"][c];
      regions.set(i + 1, { ...(isThing ? description.things : description.classes)[c], id: i + 1, category_id, ...score });
    });
  else description.classes.forEach((known, label) => regions.set(label, { ...known, label }));
  const map = isPanoptic ? values.ids : values.labels, confidence = values.confidences;
  for (const region of regions.values())
    Object.assign(region, { area: 0, sum: 0, left: width, top: height, right: 0, bottom: 0 });
  for (let y = 0, i = 0; y < height; y++)
    for (let x = 0; x < width; x++, i++) {
      const region = regions.get(map[i]);
      confidence[i] = region ? region.score ?? confidence[i] : 0;
      if (!region) continue;
      region.area++;
      region.sum += confidence[i];
      if (x < region.left) region.left = x;
      if (x >= region.right) region.right = x + 1;
      if (y < region.top) region.top = y;
      if (y >= region.bottom) region.bottom = y + 1;
    }
  for (const [number, region] of regions)
    if (region.area) region.confidence = Math.round(1e4 * region.sum / region.area) / 1e4;
    else regions.delete(number);
  return { width, height, map, confidence, regions };
}

/** The content of the JSON file, as of run_onnx.py for one image. */
function asJson({ width, height, regions }, fileName, png) {
  const all = [...regions.values()], image = { file_name: fileName, height, width };
  if (!isPanoptic) {
    const segments = all.map(({ label, name, area, confidence }) => ({ label, name, area, confidence }));
    const classes = description.classes.map((known, label) => ({ label, ...known }));
    return { classes, images: [{ ...image, labels: png, segments }] };
  }
  const segments_info = all.map(({ id, category_id, area, left, top, right, bottom, score, confidence }) => ({
    id, category_id, iscrowd: 0, area, bbox: [left, top, right - left, bottom - top],
    ...(score === undefined ? {} : { score }), confidence,
  }));
  const annotations = [{ image_id: 1, file_name: png, segments_info }];
  return { images: [{ id: 1, ...image }], annotations, categories: description.categories };
}

/** The numbers of the regions as colours: red + 256 green + 65536 blue, COCO's way. */
function asColors({ width, height, map }) {
  const image = new ImageData(width, height);
  map.forEach((number, i) => {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = number >> (8 * c);
    image.data[4 * i + 3] = 255;
  });
  return image;
}

/** The photo under the colours of the classes with white outlines, or the confidence as grey. */
function asPicture(photo, { width, height, map, confidence, regions }, view) {
  const image = new ImageData(new Uint8ClampedArray(photo.data), width, height), weight = WEIGHTS[view];
  for (let i = 0; i < map.length; i++) {
    const isEdge = ((i + 1) % width && map[i] !== map[i + 1]) || (i + width < map.length && map[i] !== map[i + width]);
    const color = regions.get(map[i])?.color ?? [128, 128, 128];
    for (let c = 0; c < 3; c++) {
      const over = view === "confidence" ? 255 * confidence[i] : color[c];
      const mixed = (1 - weight) * photo.data[4 * i + c] + weight * over;
      image.data[4 * i + c] = view === "segments" && isEdge ? 255 : mixed;
    }
  }
  return image;
}

function canvasOf(image, canvas = document.createElement("canvas")) {
  Object.assign(canvas, { width: image.width, height: image.height });
  canvas.getContext("2d", { willReadFrequently: true }).putImageData(image, 0, 0);
  return canvas;
}

const asPng = (canvas) => new Promise((done) => canvas.toBlob(done, "image/png"));

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function show(name, photo, prediction) {
  const section = byId("result").content.cloneNode(true).firstElementChild;
  const find = (selector) => section.querySelector(selector);
  const stem = name.replace(/\.[^.]*$/, ""), canvas = find("canvas");
  const draw = () => canvasOf(asPicture(photo, prediction, find("select").value), canvas);
  const told = (region, confidence) => `${region.name} ${confidence.toFixed(2)}`;
  find("h2").textContent = name;
  find("select").onchange = draw;
  find(".save").onclick = async () => {
    save(await asPng(canvasOf(asColors(prediction))), `${stem}.png`);
    const json = JSON.stringify(asJson(prediction, name, `${stem}.png`));
    save(new Blob([json], { type: "application/json" }), `${stem}.json`);
  };
  find(".picture").onclick = async () => save(await asPng(canvas), `${stem}_${find("select").value}.png`);
  canvas.onpointermove = (event) => {
    const x = Math.floor(event.offsetX / canvas.clientWidth * prediction.width);
    const y = Math.floor(event.offsetY / canvas.clientHeight * prediction.height);
    const i = Math.min(y, prediction.height - 1) * prediction.width + Math.min(x, prediction.width - 1);
    const region = prediction.regions.get(prediction.map[i]);
    find(".here").textContent = region ? told(region, prediction.confidence[i]) : "no segment";
  };
  for (const region of prediction.regions.values()) {
    const row = find("tbody").insertRow(), color = document.createElement("span");
    color.className = "color";
    color.style.background = `rgb(${region.color})`;
    row.insertCell().append(color, region.name);
    row.insertCell().textContent = `${(100 * region.area / prediction.map.length).toFixed(1)} %`;
    row.insertCell().textContent = region.confidence.toFixed(2);
  }
  draw();
  byId("results").prepend(section);
}

/** The pixels of a file or of the camera's video, as they are stored: no colour management. */
async function pixelsOf(source) {
  const bitmap = await createImageBitmap(source, { colorSpaceConversion: "none" });
  const context = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height);
}

async function process(session, name, source) {
  let photo;
  try {
    photo = await pixelsOf(source);
  } catch {
    return `${name} is no image that this browser reads.`;
  }
  const start = performance.now(), size = `${photo.width} x ${photo.height}`;
  say(`${name}, ${size} pixels ...`);
  await new Promise((done) => setTimeout(done, 30)); // until that is on the screen
  try {
    show(name, photo, await predict(session, photo));
  } catch (error) {
    return `The model cannot run on ${name} (${size} pixels; large ones need more memory): ${reason(error)}`;
  }
  say(`${name}: ${((performance.now() - start) / 1000).toFixed(1)} s`);
  return null;
}

async function start() {
  for (const type of ["dragover", "drop"]) // else a photo dropped beside the box takes the page's place
    window.addEventListener(type, (event) => event.preventDefault());
  const session = await loadModel(), video = byId("video"), drop = byId("drop");
  let last = Promise.resolve();
  const add = (named) => (last = last.then(async () => {
    const failed = [];
    for (const [name, source] of named) failed.push(await process(session, name, source));
    const errors = failed.filter(Boolean);
    if (errors.length) say(errors.join(" "), true);
  }));
  const addFiles = (files) => add([...files].map((file) => [file.name, file]));
  byId("files").onchange = ({ target }) => {
    addFiles(target.files);
    target.value = ""; // the same files can be chosen again
  };
  drop.ondragover = () => { drop.className = "over"; };
  drop.ondragleave = () => { drop.className = ""; };
  drop.ondrop = (event) => { drop.className = ""; addFiles(event.dataTransfer.files); };
  byId("camera").onclick = async () => {
    try {
      if (video.hidden) {
        video.srcObject = await navigator.mediaDevices.getUserMedia({ video: true });
        await video.play(); // until there is a picture to take, and its size is known
        video.hidden = false;
        byId("camera").textContent = "Take the picture";
      } else await add([[`camera ${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.png`, video]]);
    } catch (error) {
      say(`The camera cannot be used: ${reason(error)}`, true);
    }
  };
  byId("files").disabled = byId("camera").disabled = false;
  say("Ready.");
}

start().catch((error) => say(reason(error), true));
