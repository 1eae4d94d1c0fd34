// Inserts TypeORM entities whose primary keys come from an idalloc sequence.

import 'reflect-metadata';
import { connect } from '@idalloc/client';
import {
  Column,
  DataSource,
  Entity,
  type EntitySubscriberInterface,
  EventSubscriber,
  type InsertEvent,
  PrimaryColumn,
} from 'typeorm';

const [server, file, count] = process.argv.slice(2);
if (server === undefined || file === undefined || !/^\d+$/.test(count ?? '')) {
  throw new Error('usage: npm start -- SERVER FILE COUNT');
}

// Neither call connects: the first id does.
const client = connect({ addresses: server });
const orderIds = client.pool('orders');

@Entity('orders')
class Order {
  // Some drivers return a BIGINT as text or as a number.
  @PrimaryColumn('bigint', { transformer: { to: (id) => id, from: BigInt } })
  id!: bigint;

  @Column('text')
  customer!: string;
}

@EventSubscriber()
class OrderIds implements EntitySubscriberInterface<Order> {
  listenTo = () => Order;

  async beforeInsert({ entity }: InsertEvent<Order>): Promise<void> {
    entity.id ??= await orderIds.next();
  }
}

const source = new DataSource({
  type: 'better-sqlite3',
  database: file,
  timeout: 20_000,
  prepareDatabase: (database) => database.defaultSafeIntegers(), // ids beyond 2^53 as bigint
  entities: [Order],
  subscribers: [OrderIds],
});
try {
  await source.initialize();
  // In a project, a migration.
  await source.query('CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, customer TEXT NOT NULL)');
  const orders = Array.from({ length: Number(count) }, (_, n) => ({ customer: `customer ${n}` }));
  await source.getRepository(Order).save(orders, { chunk: 1000 });
} finally {
  if (source.isInitialized) await source.destroy();
  client.close();
}
