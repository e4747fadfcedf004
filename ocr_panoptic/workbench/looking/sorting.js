// Sorts a table by the column whose heading is pressed: numbers from the largest, names from A; the
// other way round when it is pressed again.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    return text === "" || isNaN(text) ? text : Number(text);
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? 1 : -1; // nothing is below any number
    return a.localeCompare(b);
  };
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const rows = [...body.rows];
      const first = rows.some((row) => typeof value(row, column) === "number") ? "descending" : "ascending";
      const opposite = first === "descending" ? "ascending" : "descending";
      const order = heading.getAttribute("aria-sort") === first ? opposite : first;
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      rows.sort((a, b) => sign * compare(value(a, column), value(b, column)));
      body.append(...rows);
    });
  });
}
