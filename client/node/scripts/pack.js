// Writes the archive for a registry, after `npm run build`: node scripts/pack.js FOLDER [VERSION].
// Its package.json has neither scripts nor what only a build needs.

import { execFileSync } from 'node:child_process';
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const [folder = 'dist', version] = process.argv.slice(2);
const { scripts, devDependencies, ...manifest } = JSON.parse(readFileSync(`${root}/package.json`, 'utf8'));

const staged = `${root}/dist/package`;
rmSync(staged, { recursive: true, force: true });
cpSync(`${root}/dist/src`, `${staged}/dist/src`, { recursive: true });
cpSync(`${root}/README.md`, `${staged}/README.md`);
cpSync(`${root}/../../LICENSE`, `${staged}/LICENSE`);
writeFileSync(`${staged}/package.json`, `${JSON.stringify({ ...manifest, version: version ?? manifest.version }, null, 2)}\n`);
mkdirSync(folder, { recursive: true });
const pack = ['pack', '--silent', '--pack-destination', resolve(folder)];
process.stdout.write(execFileSync('npm', pack, { cwd: staged, encoding: 'utf8' }));
