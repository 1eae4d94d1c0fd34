// A proxy before servers: it forwards, hangs, or breaks its first connections as a row of broken_transports.json says.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** A row of broken_transports.json. */
export type Broken = { name: string; when: string; do: string; code: number; text: string };

const [HEADERS, RST_STREAM, SETTINGS, GOAWAY] = [1, 3, 4, 7];

function frame(kind: number, stream: number, ...words: number[]): Buffer {
  const bytes = Buffer.alloc(9 + 4 * words.length);
  bytes.writeUInt32BE(((4 * words.length) << 8) | kind);
  [stream, ...words].forEach((word, index) => bytes.writeUInt32BE(word, 5 + 4 * index));
  return bytes;
}

export class Wire {
  /** How many connections came. */
  connections = 0;
  readonly #pipes = new Map<Socket, Socket>();
  #isHung = false;
  readonly #server: Server;

  private constructor(upstreams: string[], broken: Broken | undefined, breaks: number) {
    this.#server = createServer((socket) => {
      const upstream = connect(Number(upstreams[this.connections++ % upstreams.length]!.split(':')[1]), '127.0.0.1');
      this.#pipes.set(socket, upstream);
      const end = () => {
        this.#pipes.delete(socket);
        for (const each of [socket, upstream]) each.destroy();
      };
      for (const each of [socket, upstream]) each.on('error', end).on('close', end);
      if (broken !== undefined && this.connections <= breaks) breakIt(socket, broken);
      else if (!this.#isHung) socket.pipe(upstream).pipe(socket);
    });
  }

  /** Starts a proxy, which forwards connections to the upstreams in turn. */
  static async start(upstreams: string | string[], broken?: Broken, breaks = Infinity): Promise<Wire> {
    const wire = new Wire([upstreams].flat(), broken, breaks);
    await once(wire.#server.listen(0, '127.0.0.1'), 'listening');
    return wire;
  }

  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Holds all bytes back, as a stopped process does; connections are accepted. */
  set isHung(isHung: boolean) {
    this.#isHung = isHung;
    for (const [one, other] of this.#pipes) {
      if (isHung) for (const each of [one, other]) each.unpipe().pause();
      else one.pipe(other).pipe(one);
    }
  }

  stop(): void {
    this.#server.close();
    for (const socket of this.#pipes.keys()) socket.destroy();
  }
}

function breakIt(socket: Socket, broken: Broken): void {
  const act = (stream: number) => {
    if (broken.do === 'close') socket.end();
    if (broken.do === 'reset') socket.resetAndDestroy();
    if (broken.do === 'goaway') socket.write(frame(GOAWAY, 0, 0, broken.code));
    if (broken.do === 'rst') socket.write(frame(RST_STREAM, stream, broken.code));
  };
  if (broken.do === 'text') socket.end(broken.text);
  else socket.write(frame(SETTINGS, 0));
  if (broken.when === 'connection') act(0);
  let bytes = Buffer.alloc(0);
  let start = 24; // after the preface
  socket.on('data', (more) => {
    bytes = Buffer.concat([bytes, more]);
    for (let end = 0; bytes.length >= start + 9; start = end) {
      end = start + 9 + bytes.readUIntBE(start, 3);
      if (bytes.length < end) return;
      if (bytes[start + 3] === HEADERS && broken.when === 'call') act(bytes.readUInt32BE(start + 5));
    }
  });
}
