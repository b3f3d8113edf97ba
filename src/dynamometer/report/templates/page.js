"use strict";
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themes = JSON.parse(document.getElementById("themes")?.textContent ?? "{}");
  const plots = [...document.querySelectorAll(".plot")];
  const specs = new Map(plots.map((plot) => [plot, JSON.parse(plot.parentElement.querySelector(".spec").textContent)]));
  const drawn = new Map();

  const themeName = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

  // Draws with the theme's colours; a second call with the same theme does nothing.
  async function draw(plot, theme = themeName()) {
    if (drawn.get(plot) === theme) return;
    drawn.set(plot, theme);
    const columns = Math.max(1, Math.floor(plot.clientWidth / 130)); // a legend wraps instead of being cut
    try {
      await vegaEmbed(plot, specs.get(plot), {
        mode: "vega-lite",
        renderer: "svg",
        ast: true, // expressions are interpreted: the page's policy forbids making code from text
        config: { ...themes[theme], aria: false, legend: { ...themes[theme].legend, columns } },
        actions: { export: true, source: false, compiled: false, editor: false },
        downloadFileName: plot.dataset.name,
      });
      plot.style.minHeight = "";
    } catch (fault) {
      plot.textContent = `The picture could not be drawn (${fault.message}); its numbers are below.`;
    }
  }

  // What is near the screen first, then the rest one by one, so that the page answers in between.
  const near = new IntersectionObserver(
    (seen) => seen.filter((one) => one.isIntersecting).forEach((one) => draw(one.target)),
    { rootMargin: "400px" },
  );
  plots.forEach((plot) => near.observe(plot));
  const rest = plots.slice();
  const next = () => {
    const plot = rest.shift();
    if (plot) draw(plot).then(() => setTimeout(next));
    else root.dataset.ready = "yes";
  };
  setTimeout(next);

  const redraw = () => [...drawn.keys()].forEach((plot) => draw(plot));
  addEventListener("beforeprint", () => plots.forEach((plot) => draw(plot, "light")));
  addEventListener("afterprint", redraw);

  const button = document.getElementById("theme");
  const label = () => { button.textContent = themeName() === "dark" ? "Light" : "Dark"; };
  const keep = (name) => { try { localStorage.setItem("dyno-theme", name); } catch { /* a page from a file may not */ } };
  try {
    const kept = localStorage.getItem("dyno-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* the same */ }
  label();
  button.hidden = false;
  dark.addEventListener("change", () => { label(); redraw(); });
  button.addEventListener("click", () => {
    root.dataset.theme = themeName() === "dark" ? "light" : "dark";
    keep(root.dataset.theme);
    label();
    redraw();
  });

  for (const copy of document.querySelectorAll(".copy")) {
    if (!navigator.clipboard) break;
    copy.hidden = false;
    const words = copy.textContent;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(copy.dataset.text);
      copy.textContent = "Copied";
      setTimeout(() => { copy.textContent = words; }, 1500);
    });
  }
})();
