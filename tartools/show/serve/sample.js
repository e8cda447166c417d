// One sample, large: its pictures, sounds, videos, texts, arrays, columns, and where it is.

import { getJson, payload, thumbnail, whyNot } from "./api.js";
import { button, columnName, columnValue, count, fieldName, find, make, size } from "./dom.js";
import { jsonBlock, textBlock } from "./text.js";
import { zoomable } from "./zoom.js";

const PREVIEW_PIXELS = 1024; // of a picture that the browser can't show itself
const MEDIA = { sound: "audio", video: "video" };

export class Sample {
  // `acts`: filter(filter), close().
  constructor(acts) {
    this.acts = acts;
    this.dialog = find("large");
    this.body = find("large-sample");
  }

  get isOpen() {
    return this.dialog.open;
  }

  // Show the sample at a position; `number` says which one of the list it is.
  async show(position, key, number) {
    this.request?.abort();
    this.request = new AbortController();
    const { signal } = this.request;
    this.position = position;
    find("large-key").textContent = key || "…";
    find("large-number").textContent = number;
    if (!this.dialog.open) this.dialog.showModal();
    this.body.focus();
    this.body.setAttribute("aria-busy", "true");
    try {
      const sample = await getJson("/api/sample", { position }, signal);
      find("large-key").textContent = sample.key;
      this.fill(sample);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.empty();
      this.body.append(
        make("p", { class: "wrong", role: "alert", text: error.message }),
        button("Try again", () => this.show(position, key, number)),
      );
    }
    if (!signal.aborted) this.body.removeAttribute("aria-busy");
  }

  close() {
    this.request?.abort();
    this.empty();
    this.dialog.close();
  }

  // Take out what is shown; sounds and videos stop, also their downloads.
  empty() {
    for (const media of this.body.querySelectorAll("audio, video")) {
      media.removeAttribute("src");
      media.load();
    }
    this.body.replaceChildren();
    this.zoom = null;
    this.body.scrollTop = 0;
  }

  fill(sample) {
    this.empty();
    const pictures = [
      ...sample.fields.filter(({ kind }) => kind === "picture"),
      ...sample.fields.filter(({ heatmap }) => heatmap),
    ];
    const media = sample.fields.filter(({ kind }) => Object.hasOwn(MEDIA, kind));
    const stage = make("div", { class: "stage" });
    if (pictures.length) this.showPicture(stage, sample, pictures, pictures[0]);
    else for (const field of media) if (field.kind === "video" || field.waveform) stage.append(player(sample, field));
    const fields = make("div", { class: "fields" });
    for (const field of sample.fields) fields.append(fieldSection(sample, field));
    if (!stage.querySelector("audio, video")) fields.prepend(...media.map((field) => player(sample, field)));
    fields.append(this.columns(sample), place(sample));
    this.body.classList.toggle("staged", stage.hasChildNodes());
    this.body.append(...(stage.hasChildNodes() ? [stage] : []), fields);
  }

  showPicture(stage, sample, pictures, field) {
    const image = make(
      "img",
      { alt: `${field.heatmap ? "heat map of " : ""}${fieldName(field.name)} of ${sample.key}` },
    );
    const url = field.heatmap || payload(sample.position, field.name);
    const preview = thumbnail(sample.position, field.name, PREVIEW_PIXELS);
    const note = make("p", { class: "soft note", role: "status" });
    image.addEventListener("error", async () => {
      if (image.getAttribute("src") === url) {
        image.src = preview;
        note.textContent = "This browser can't show the file itself: this is a preview.";
      } else if (image.isConnected) {
        const reason = field.broken || (await whyNot(preview));
        stage.replaceChildren(make("p", { class: "wrong", text: `${fieldName(field.name)}: ${reason}` }));
      }
    });
    image.src = url;
    this.zoom = zoomable(image);
    stage.replaceChildren(this.zoom.node, this.zoom.tools, note);
    if (pictures.length < 2) return;
    const choices = pictures.map((other) =>
      button(
        fieldName(other.name),
        () => this.showPicture(stage, sample, pictures, other),
        { "aria-pressed": String(other === field) },
      ),
    );
    stage.prepend(make("p", { class: "views", role: "group", "aria-label": "Picture" }, ...choices));
  }

  columns(sample) {
    const entries = Object.entries(sample.columns || {}).filter(
      ([name, value]) => !isPlace(name) && value !== null && !isShownField(sample, name),
    );
    if (!entries.length) return "";
    const rows = entries.flatMap(([name, value]) => {
      const text = columnValue(name, value);
      const same = button(
        text === "" ? '""' : text,
        () => this.acts.filter({ column: name, value }),
        { class: "link", title: `Show only samples with this ${columnName(name)}` },
      );
      return [
        make("dt", { text: columnName(name) }),
        make("dd", {}, this.acts.isFacet(name) ? same : make("span", { text })),
      ];
    });
    return make(
      "section",
      { class: "field" },
      make("h3", {}, make("span", { class: "name", text: "Columns" })),
      make("dl", {}, ...rows),
    );
  }

  // Play or pause the first sound or video; return false if there is none.
  play() {
    const media = this.body.querySelector("audio, video");
    if (media?.paused) media.play().catch(() => {}); // the error is shown beside the player
    else media?.pause();
    return Boolean(media);
  }
}

// Columns that say what is shown anyway: the place of the sample, and values and sizes of its fields.
const isPlace = (name) => /^__\w+__$/.test(name);
const isShownField = (sample, name) => sample.fields.some(
  (field) => name === field.name || name === `${field.name}.size`,
);

function fieldSection(sample, field) {
  const url = payload(sample.position, field.name);
  const head = make(
    "h3",
    {},
    make("span", { class: "name", text: fieldName(field.name) }),
    make(
      "span",
      { class: "soft", text: [field.broken ? "" : describe(field), size(field.size)].filter(Boolean).join(" · ") },
    ),
    make(
      "a",
      {
        href: url,
        download: `${sample.key.split("/").pop()}.${field.name}`,
        text: "Download",
        "aria-label": `Download ${fieldName(field.name)}`,
      },
    ),
  );
  const node = make("section", { class: "field" }, head);
  if (field.broken) node.append(make("p", { class: "wrong", text: field.broken }));
  if (field.json !== undefined && field.json !== null) node.append(jsonBlock(field.json));
  else if (field.text !== undefined && field.text !== null) node.append(textBlock(field.text));
  return node;
}

// What a field is; its text follows, and need not be said twice.
const describe = ({ description, text }) => (typeof text === "string" ? description.split(":")[0] : description);

function player(sample, field) {
  const url = payload(sample.position, field.name);
  const label = `${field.kind} ${fieldName(field.name)} of ${sample.key}`;
  const media = make(MEDIA[field.kind], { controls: true, preload: "metadata", "aria-label": label });
  const node = make("figure", { class: field.kind });
  if (field.kind === "video") media.setAttribute("playsinline", "");
  if (field.waveform) node.append(waveform(field.waveform, media));
  const failed = () => {
    if (!media.getAttribute("src")) return; // taken away
    const reason = field.broken || "this browser can't play it; download it to hear or see it";
    node.replaceChildren(make("p", { class: "wrong", text: `${fieldName(field.name)}: ${reason}` }));
  };
  media.addEventListener("error", failed);
  media.src = url;
  node.append(media);
  return node;
}

// The waveform of a sound: a click goes there, a line shows what is heard. The player has the same for keys.
function waveform(url, media) {
  const line = make("span", { class: "playhead" });
  const node = make("div", { class: "waveform", "aria-hidden": "true" }, make("img", { src: url, alt: "" }), line);
  node.querySelector("img").addEventListener("error", () => node.remove());
  media.addEventListener(
    "timeupdate",
    () => (line.style.left = `${(100 * media.currentTime) / (media.duration || 1)}%`),
  );
  node.addEventListener("click", (event) => {
    const box = node.getBoundingClientRect();
    if (media.duration) media.currentTime = ((event.clientX - box.left) / box.width) * media.duration;
  });
  return node;
}

function place(sample) {
  const rows = [
    ["shard", sample.shard],
    ["byte", count(sample.offset)],
    ["size", `${count(sample.size)} bytes`],
    ["position", `${count(sample.position)}, counted from 0`],
  ];
  const copy = button(
    "Copy",
    async () => {
      await navigator.clipboard.writeText(`${sample.shard} ${sample.offset} ${sample.key}`);
      copy.textContent = "Copied";
    },
    { title: "Copy shard, byte and key" },
  );
  const list = rows.flatMap(([name, value]) => [make("dt", { text: name }), make("dd", { text: value })]);
  return make(
    "section",
    { class: "field" },
    make("h3", {}, make("span", { class: "name", text: "Place" }), copy),
    make("dl", {}, ...list),
  );
}
