// A picture that fits its place, or is shown larger and scrolled.

import { button, make } from "./dom.js";

const STEP = 1.5;
const MOST = 32; // pixels of the screen for one of the picture
const UNSMOOTHED = 2; // from this scale on, and if it is small, a picture is drawn unsmoothed

export function zoomable(image) {
  const node = make(
    "div",
    {
      class: "zoom",
      tabindex: 0,
      role: "group",
      "aria-label": "Picture; + and - zoom, 0 fits, arrows scroll when it is larger",
    },
    image,
  );
  const scaleText = make("span", { class: "soft", "aria-live": "polite" });
  const zoom = { node, scale: null, image };
  const fitScale = () => Math.min(
    node.clientWidth / image.naturalWidth,
    node.clientHeight / image.naturalHeight,
  ) || 1;

  // Set the scale (null: as large as fits) so that the point (x, y) of the place, in pixels, keeps its part of the
  // picture.
  zoom.set = (scale, x = node.clientWidth / 2, y = node.clientHeight / 2) => {
    const before = image.getBoundingClientRect();
    const box = node.getBoundingClientRect();
    const part = [(x + box.left - before.left) / before.width, (y + box.top - before.top) / before.height];
    zoom.scale = scale === null ? null : Math.max(Math.min(fitScale(), 1), Math.min(scale, MOST));
    const shown = zoom.scale ?? Math.min(
      fitScale(),
      image.naturalWidth <= 64 ? 8 : Math.max(1, Math.min(2, fitScale())),
    );
    image.style.width = `${image.naturalWidth * shown}px`;
    image.style.height = `${image.naturalHeight * shown}px`;
    image.classList.toggle("pixels", shown >= UNSMOOTHED);
    node.classList.toggle(
      "larger",
      image.offsetWidth > node.clientWidth + 1 || image.offsetHeight > node.clientHeight + 1,
    );
    node.scrollLeft = part[0] * image.offsetWidth - x;
    node.scrollTop = part[1] * image.offsetHeight - y;
    const sides = `${image.naturalWidth} x ${image.naturalHeight}`;
    scaleText.textContent = `${sides} at ${Math.round(shown * 100)} %`;
  };
  zoom.larger = () => zoom.set((zoom.scale ?? fitScale()) * STEP);
  zoom.smaller = () => zoom.set((zoom.scale ?? fitScale()) / STEP);
  zoom.fit = () => zoom.set(null);
  zoom.toggle = (x, y) => (zoom.scale === null ? zoom.set(Math.max(1, fitScale() * 2), x, y) : zoom.set(null));

  image.addEventListener("load", () => zoom.set(null));
  new ResizeObserver(() => zoom.scale === null && image.naturalWidth && zoom.set(null)).observe(node);
  node.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const box = node.getBoundingClientRect();
    zoom.set(
      (zoom.scale ?? fitScale()) * Math.exp(-event.deltaY / 300),
      event.clientX - box.left,
      event.clientY - box.top,
    );
  }, { passive: false });
  drag(node, (event) => {
    const box = node.getBoundingClientRect();
    zoom.toggle(event.clientX - box.left, event.clientY - box.top);
  });
  zoom.tools = make(
    "p",
    { class: "zoom-tools" },
    button("−", zoom.smaller, { "aria-label": "Smaller", title: "Smaller (-)" }),
    button("Fit", zoom.fit, { title: "As large as fits (0)" }),
    button("+", zoom.larger, { "aria-label": "Larger", title: "Larger (+)" }),
    button(
      "1:1",
      () => zoom.set(1),
      { "aria-label": "One pixel of the picture for one of the page", title: "One pixel for one (1)" },
    ),
    scaleText,
  );
  return zoom;
}

// Move the picture with the mouse; a press without a move is a click. Fingers scroll by themselves.
function drag(node, click) {
  let start = null;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    start = { x: event.clientX, y: event.clientY, left: node.scrollLeft, top: node.scrollTop, moved: false };
    if (event.pointerType === "mouse") node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    if (!start) return;
    const [x, y] = [event.clientX - start.x, event.clientY - start.y];
    start.moved ||= Math.hypot(x, y) > 4;
    if (event.pointerType !== "mouse") return;
    node.scrollLeft = start.left - x;
    node.scrollTop = start.top - y;
  });
  node.addEventListener("pointercancel", () => (start = null));
  node.addEventListener("pointerup", (event) => {
    if (start && !start.moved) click(event);
    start = null;
  });
  node.addEventListener("dragstart", (event) => event.preventDefault());
}
