// Exercises become editors. Python judges in a worker, so that the page stays alive whatever somebody writes.
(() => {
  const script = document.currentScript;
  if (!location.protocol.startsWith("http")) return; // from disk a browser starts no worker

  const INDENT = "    ";
  const DEEPER = { 2: "What is wrong?", 3: "What to change?", 4: "Show an answer" };
  let kept = { getItem: () => null, setItem() {} }; // where a browser keeps nothing
  try {
    kept = localStorage;
  } catch {}

  let worker = null, isReady = false, timer = 0;
  let asking = null; // the exercise that is being judged

  function start() {
    if (worker) return;
    isReady = false;
    worker = new Worker(new URL("judge-worker.js", script.src), { type: "module" });
    worker.onmessage = ({ data }) => heard[data.kind](data);
    worker.onerror = (event) => heard.failed({ words: event.message ?? "Python did not start" });
    for (const one of exercises) if (one.fold.open) one.rehearse();
  }

  function end() {
    clearTimeout(timer);
    worker?.terminate();
    worker = null;
  }

  const heard = {
    ready() {
      isReady = true;
      asking?.show("", "It is being judged ...");
    },
    limit({ seconds }) {
      clearTimeout(timer);
      if (seconds) timer = setTimeout(() => stop(script.dataset.tooLong), seconds * 1000);
    },
    said({ status, words, deeper }) {
      clearTimeout(timer);
      done(status, words, deeper);
    },
    failed({ words }) {
      end();
      done("no answer", `${asking?.name}: no answer, ${words}`, 0);
    },
  };

  function stop(words) {
    const name = asking?.name;
    end();
    done("no answer", `${name}: no answer, ${words}`, 0);
    start(); // the next verdict need not wait for it
  }

  function done(status, words, deeper) {
    const exercise = asking;
    asking = null;
    for (const one of exercises) one.rest();
    exercise?.show(status, words, deeper);
  }

  class Exercise {
    constructor(fold) {
      this.fold = fold;
      this.name = fold.dataset.name;
      this.archives = fold.dataset.archives.split(" ");
      [this.asked, this.copy] = fold.querySelectorAll("pre");
      this.given = this.copy.textContent;
      fold.querySelector("summary").textContent = `Write ${this.name} here`;
      fold.classList.add("editable");
      this.code = document.createElement("textarea");
      Object.assign(this.code, { spellcheck: false, autocapitalize: "off", autocomplete: "off", wrap: "off" });
      this.code.setAttribute("aria-label", `Your ${this.name}. Tab indents; Escape, then Tab, goes on.`);
      this.words = document.createElement("pre");
      this.words.className = "said";
      this.words.setAttribute("role", "status");
      this.judge = this.button("Judge", () => (asking === this ? stop("you stopped it") : this.ask(1)));
      this.judge.title = "Ctrl+Enter";
      this.hint = this.button("", () => this.ask(this.deeper));
      this.anew = this.button("Start anew", () => this.edit(this.given));
      const row = document.createElement("p");
      row.className = "buttons";
      row.append(this.judge, this.hint, this.anew);
      fold.append(this.code, row, this.words);
      this.code.addEventListener("keydown", (event) => this.key(event));
      this.code.addEventListener("input", () => this.keep());
      fold.addEventListener("toggle", () => (worker ? this.rehearse() : start()), { once: true });
      this.code.value = kept.getItem(`judge:${this.name}`) ?? this.given;
      this.keep();
      this.show("", "");
    }

    button(label, act) {
      const button = document.createElement("button");
      Object.assign(button, { type: "button", textContent: label, onclick: act });
      return button;
    }

    keep() {
      this.copy.textContent = this.code.value; // what is printed
      this.code.rows = Math.max(6, this.code.value.split("\n").length + 1);
      kept.setItem(`judge:${this.name}`, this.code.value);
    }

    edit(text) {
      this.code.focus();
      this.code.select();
      insert(text);
    }

    rehearse() {
      worker.postMessage({ name: this.name, archives: this.archives });
    }

    ask(level) {
      if (asking) return;
      start();
      asking = this;
      for (const one of exercises) one.judge.disabled = one.hint.disabled = one !== this;
      this.judge.textContent = "Stop";
      this.show("", isReady ? "It is being judged ..." : `Python is starting; the first time ${script.dataset.size} MB are fetched ...`);
      const whole = `"""${this.asked.textContent}\n"""\n\n${this.given}`; // the file as it is handed out
      const text = this.code.value === this.given ? whole : this.code.value;
      worker.postMessage({ name: this.name, text, level, archives: this.archives });
    }

    rest() {
      this.judge.textContent = "Judge";
      this.judge.disabled = this.hint.disabled = false;
    }

    show(status, words, deeper = 0) {
      this.words.textContent = words;
      this.words.dataset.status = status || (deeper && this.status) || ""; // a hint is about the last verdict
      if (status) this.status = status;
      this.words.hidden = !words;
      this.deeper = deeper;
      this.hint.hidden = !deeper;
      this.hint.textContent = status === "to do" ? "How to begin?" : DEEPER[deeper];
    }

    key(event) {
      const leaves = this.leaves;
      this.leaves = event.key === "Escape" || (leaves && event.key === "Shift");
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.ask(1);
      else if (event.key === "Enter") newline(this.code);
      else if (event.key === "Tab" && !leaves) indent(this.code, event.shiftKey);
      else return;
      event.preventDefault();
    }
  }

  // As if it were typed, so that it can be undone.
  function insert(text) {
    document.execCommand(text ? "insertText" : "delete", false, text);
  }

  function newline(code) {
    const line = code.value.slice(0, code.selectionStart).split("\n").pop();
    insert(`\n${line.match(/^ */)[0]}${line.trimEnd().endsWith(":") ? INDENT : ""}`);
  }

  function indent(code, isBack) {
    if (code.selectionStart === code.selectionEnd && !isBack) return insert(INDENT);
    const from = code.value.lastIndexOf("\n", code.selectionStart - 1) + 1;
    const lines = code.value.slice(from, code.selectionEnd).split("\n");
    code.setSelectionRange(from, code.selectionEnd);
    const text = lines.map((line) => (isBack ? line.replace(/^ {1,4}/, "") : line && INDENT + line)).join("\n");
    insert(text);
    if (lines.length > 1) code.setSelectionRange(from, from + text.length);
  }

  const exercises = [...document.querySelectorAll("details.exercise:not(.editable)")].map((fold) => new Exercise(fold));
})();
