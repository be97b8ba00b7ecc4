// Runs tests of the interpreter in CPython 3.14 for WebAssembly, where no other 3.14 is at hand:
//
//     npm install pyodide@314.0.7
//     pip install --target site --no-deps pytest pluggy iniconfig packaging pygments
//     node --stack-size=4000 tests/interpreter/webassembly.mjs site tests/interpreter/test_programs.py ...
//
// This build has pointers of 32 bits and neither threads nor processes. The offsets of native.py are counted in pointers
// and hold here too, so the checks of version and build are lifted.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const found = createRequire(`${process.cwd()}/`).resolve("pyodide/pyodide.mjs");
const { loadPyodide } = await import(pathToFileURL(found));
const [site, ...tests] = process.argv.slice(2);
const python = await loadPyodide();
for (const [folder, root] of [["/repository", process.cwd()], ["/site", site]]) {
  python.FS.mkdirTree(folder);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, folder);
}
python.FS.chdir("/repository");
python.globals.set("tests", python.toPy(tests));
process.exitCode = await python.runPythonAsync(`
import sys
sys.dont_write_bytecode = True
sys.path[:0] = ["/repository", "/site"]
from thunder_core.interpreter import entry, native, table, versions

for module in (entry, native, table):
    module.require_supported = lambda *_: None
native._at = native.OFFSETS[versions.HERE]

import pytest
int(pytest.main(["-q", "--noconftest", "-c", "/dev/null", "--rootdir=/repository", "--import-mode=importlib",
                 "-p", "no:cacheprovider", "--tb=short", *tests]))
`);
