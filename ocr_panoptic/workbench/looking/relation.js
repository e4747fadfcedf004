// Shows the relation of the pixel that is clicked on: the most related regions as bars.
for (const figure of document.querySelectorAll(".relation")) {
  const { rows, columns, row, column, shown } = figure.dataset;
  const classes = JSON.parse(figure.dataset.classes);
  const weights = Uint8Array.from(atob(figure.dataset.weights), (c) => c.charCodeAt(0));
  const pick = figure.querySelector(".pick");
  const mark = figure.querySelector(".mark");
  const bars = figure.querySelector(".bars");

  const show = (i, j) => {
    mark.style.left = `${(100 * (j + 0.5)) / columns}%`;
    mark.style.top = `${(100 * (i + 0.5)) / rows}%`;
    const items = classes
      .map(([name, color], k) => ({ name, color, share: weights[(k * rows + i) * columns + j] / 255 }))
      .sort((a, b) => b.share - a.share)
      .slice(0, shown)
      .map(({ name, color, share }) => {
        const item = document.createElement("li");
        const label = item.appendChild(document.createElement("span"));
        label.textContent = name;
        const bar = item.appendChild(document.createElement("i"));
        bar.style.width = `${100 * share}%`;
        bar.style.background = color;
        item.appendChild(document.createElement("b")).textContent = `${(100 * share).toFixed(0)} %`;
        return item;
      });
    bars.replaceChildren(...items);
  };
  pick.addEventListener("click", (event) => {
    const box = pick.getBoundingClientRect();
    const cell = (place, side, count) => Math.min(count - 1, Math.floor((place / side) * count));
    show(
      cell(event.clientY - box.top, box.height, rows),
      cell(event.clientX - box.left, box.width, columns),
    );
  });
  show(Number(row), Number(column));
}
