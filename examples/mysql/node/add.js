// Add three documents, and print the ids that the server made.
import mysqlx from '@mysql/xdevapi';

const uri = process.env.MYSQLX_URI ?? 'mysqlx://shop:any@127.0.0.1:33060?ssl-mode=DISABLED';
const session = await mysqlx.getSession(uri);
await session.sql('CREATE SCHEMA IF NOT EXISTS shop').execute();
const orders = await session.getSchema('shop').createCollection('orders', { reuseExisting: true });
const added = await orders.add({ what: 'tea' }, { what: 'milk' }, { what: 'sugar' }).execute();
for (const docId of added.getGeneratedIds()) {
  console.log(docId);
}
await session.close();
