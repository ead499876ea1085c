// Ctrl+Enter, or Command+Enter, in a box for text sends its form. The page works without.
"use strict";
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.tagName === "TEXTAREA") {
    event.preventDefault();
    event.target.form.requestSubmit();
  }
});
