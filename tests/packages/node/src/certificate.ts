// Gets an id with a client certificate: certificate.js SERVER CERT KEY [CA]. Without CA it trusts those of Node.

import { connect, type TlsOptions } from '@idalloc/client';

const [addresses, cert, key, ca] = process.argv.slice(2) as [string, string, string, string?];
const tls: TlsOptions = { serverName: 'localhost' };
if (cert) Object.assign(tls, { cert, key });
if (ca !== undefined) tls.ca = ca;
const client = connect({ addresses, tls });
try {
  console.log((await client.allocateRange({ sequence: 'orders' })).idCount);
} catch (error) {
  console.log(String(error));
} finally {
  client.close();
}
