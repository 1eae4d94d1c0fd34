import io.idalloc.client.IdPool;
import io.idalloc.client.IdallocClient;
import jakarta.persistence.Entity;
import jakarta.persistence.Id;
import jakarta.persistence.Table;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.reflect.Member;
import org.hibernate.annotations.IdGeneratorType;
import org.hibernate.engine.config.spi.ConfigurationService;
import org.hibernate.engine.spi.SharedSessionContractImplementor;
import org.hibernate.generator.GeneratorCreationContext;
import org.hibernate.id.IdentifierGenerator;
import org.hibernate.jpa.HibernatePersistenceConfiguration;

/** Inserts entities whose ids come from an idalloc sequence. */
class Orders {
  @IdGeneratorType(SequenceGenerator.class)
  @Retention(RetentionPolicy.RUNTIME)
  @interface IdallocSequence {
    String value();
  }

  static class SequenceGenerator implements IdentifierGenerator {
    private final IdPool ids;

    SequenceGenerator(IdallocSequence sequence, Member field, GeneratorCreationContext context) {
      var settings = context.getServiceRegistry().requireService(ConfigurationService.class).getSettings();
      ids = ((IdallocClient) settings.get("idalloc.client")).pool(sequence.value());
    }

    public Object generate(SharedSessionContractImplementor session, Object entity) {
      return ids.next();
    }
  }

  @Entity
  @Table(name = "orders")
  static class Order {
    @Id @IdallocSequence("orders") Long id;
    String customer = "Example Ltd";
  }

  public static void main(String[] args) {
    if (args.length != 3) throw new IllegalArgumentException("expected SERVER FILE COUNT");
    try (var client = IdallocClient.builder(args[0]).build();
        var factory =
            new HibernatePersistenceConfiguration("shop", Orders.class)
                .managedClass(Order.class)
                .jdbcUrl("jdbc:h2:file:" + args[1] + ";AUTO_SERVER=TRUE")
                .property("hibernate.hbm2ddl.auto", "update") // in a project, migrations
                .property("hibernate.jdbc.batch_size", 1000)
                .property("idalloc.client", client)
                .createEntityManagerFactory()) {
      factory.inTransaction(session -> {
        for (int left = Integer.parseInt(args[2]); left > 0; left--) session.persist(new Order());
      });
    }
  }
}
