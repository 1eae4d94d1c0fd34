// Writes src/gen/constants.ts: a bundle of the package must not look for files at run time.

import { readFileSync, writeFileSync } from 'node:fs';

const read = (path) => JSON.parse(readFileSync(new URL(path, import.meta.url), 'utf8'));

const serviceConfig = read('../../../protos/idalloc/v1/service_config.json');
const { version } = read('../package.json');
writeFileSync(
  new URL('../src/gen/constants.ts', import.meta.url),
  '// Written by scripts/constants.js.\n' +
    `export const VERSION = ${JSON.stringify(version)};\n` +
    `/** protos/idalloc/v1/service_config.json: the retry policy of unary calls. */\n` +
    `export const SERVICE_CONFIG = ${JSON.stringify(serviceConfig, null, 2)};\n`,
);
