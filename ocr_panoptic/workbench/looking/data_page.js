// The list of all images: filtered, ordered, and added to the page a part at a time as one scrolls,
// so that thousands of images cost no more than those in sight.
{
  const PART = 48;
  const { folder, images } = JSON.parse(document.getElementById("data").textContent);
  const [list, end, count] = ["all", "end", "count"].map((id) => document.getElementById(id));
  const [filter, order, name, overlay] = ["filter", "order", "name", "overlay"].map((id) => document.getElementById(id));
  let chosen = [];
  let shown = 0;

  const source = (image, withTruth) =>
    `${folder}/${String(image.picture).padStart(6, "0")}${withTruth && image.truth ? "o" : ""}.jpg`;
  const text = (tag, content, className) => {
    const element = document.createElement(tag);
    element.textContent = content;
    if (className) element.className = className;
    return element;
  };
  const card = (image) => {
    const figure = document.createElement("figure");
    const picture = document.createElement("img");
    let withTruth = overlay.checked;
    Object.assign(picture, { loading: "lazy", decoding: "async", alt: image.name, width: image.size[0], height: image.size[1] });
    picture.title = "Press to show or hide the annotations";
    picture.src = source(image, withTruth);
    picture.addEventListener("click", () => {
      withTruth = !withTruth;
      picture.src = source(image, withTruth);
    });
    const caption = document.createElement("figcaption");
    caption.append(text("b", image.name), `${image.size[0]} x ${image.size[1]}, ${image.void.toFixed(1)} % void`);
    if (image.things !== null) caption.append(`, ${image.things} things, ${image.segments} segments`);
    if (image.flags.length) caption.append(text("div", `suspicious: ${image.flags.join(", ")}`, "flag"));
    figure.append(picture, caption);
    return figure;
  };
  const add = () => {
    const part = chosen.slice(shown, shown + PART);
    list.append(...part.map(card));
    shown += part.length;
  };
  const inSight = () => end.getBoundingClientRect().top < 2 * innerHeight;
  const fill = () => {
    while (shown < chosen.length && inSight()) add();
  };
  const choose = () => {
    const wanted = filter.value;
    const part = name.value.toLowerCase();
    chosen = images.filter(
      (image) =>
        image.name.toLowerCase().includes(part) &&
        (wanted === "all" ||
          (wanted === "empty" && image.things === 0) ||
          (wanted === "suspicious" && image.flags.length) ||
          image.classes.includes(Number(wanted)))
    );
    const value = { segments: (i) => i.segments, void: (i) => i.void, flags: (i) => i.flags.length }[order.value];
    if (value) chosen.sort((a, b) => value(b) - value(a));
    shown = 0;
    list.replaceChildren();
    count.textContent = `${chosen.length} of ${images.length}`;
    fill();
  };
  for (const control of [filter, order, name]) control.addEventListener("input", choose);
  overlay.addEventListener("input", choose);
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  new IntersectionObserver(fill, { rootMargin: "100% 0px" }).observe(end);
  addEventListener("scroll", fill, { passive: true });
  choose();
}
