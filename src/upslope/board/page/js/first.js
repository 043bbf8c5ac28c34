// Before the first paint: the theme that was chosen here last time, so that the page never flashes in the other one.
(() => {
  const chosen = localStorage.getItem("theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
