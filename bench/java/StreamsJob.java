import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.SessionStore;

/**
 * The peer: Kafka Streams' own joins and session windows, until it is stopped. Topics are keyed by the join key.
 * JSON is read and written by Jackson's streaming parser; the stores hold a compact binary form.
 *
 * Usage: StreamsJob join|sessions|latency KEY=VALUE...; "topic" and "window.ms" are the job's, the others Kafka Streams'.
 */
public final class StreamsJob {
  private static final JsonFactory JSON = new JsonFactory();
  private static final Duration GRACE = Duration.ofSeconds(10);
  // Closed sessions are looked for once a second of the clock. In a backlog, event time goes on by minutes meanwhile; with
  // the default (gap and grace) the store has dropped most sessions by then, and they never come out.
  private static final Duration RETENTION = Duration.ofHours(3);

  /** An order, a payment or a click: the texts that its output needs, a number, and its event time. */
  record Row(String first, String second, double number, long time) {}

  record Session(long events, String page) {}

  public static void main(String[] arguments) throws InterruptedException {
    Properties properties = new Properties();
    for (int number = 1; number < arguments.length; number++) {
      String[] pair = arguments[number].split("=", 2);
      properties.setProperty(pair[0], pair[1]);
    }
    String topic = (String) properties.remove("topic");
    Duration window = Duration.ofMillis(Long.parseLong((String) properties.remove("window.ms")));
    StreamsBuilder builder = new StreamsBuilder();
    switch (arguments[0]) {
      case "join" -> join(builder, window, topic);
      case "sessions" -> sessions(builder, window, topic);
      case "latency" -> latency(builder, window, topic);
      default -> throw new IllegalArgumentException(arguments[0]);
    }
    CountDownLatch done = new CountDownLatch(1);
    KafkaStreams streams = new KafkaStreams(builder.build(properties), properties);
    streams.setUncaughtExceptionHandler(problem -> {
      problem.printStackTrace();
      done.countDown();
      return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    });
    Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(20))));
    streams.start();
    done.await();
    System.exit(1);
  }

  private static void join(StreamsBuilder builder, Duration window, String topic) {
    KStream<String, Row> orders = read(builder, "orders", "customer", null, "amount");
    KStream<String, Row> payments = read(builder, "payments", "payment_id", "method", null);
    orders
        .join(payments, StreamsJob::joined, JoinWindows.ofTimeDifferenceAndGrace(window, GRACE),
            StreamJoined.with(Serdes.String(), STORED, STORED))
        .to(topic, Produced.with(Serdes.String(), Serdes.ByteArray()));
  }

  private static byte[] joined(String order, Row placed, Row paid) {
    return json(into -> {
      into.writeStringField("order_id", order);
      into.writeStringField("customer", placed.first);
      into.writeNumberField("amount", placed.number);
      into.writeStringField("payment_id", paid.first);
      into.writeStringField("method", paid.second);
    });
  }

  private static void latency(StreamsBuilder builder, Duration window, String topic) {
    KStream<String, Row> orders = read(builder, "orders", null, null, null);
    KStream<String, Row> payments = read(builder, "payments", null, null, "sent");
    orders
        .join(payments, StreamsJob::sent, JoinWindows.ofTimeDifferenceAndGrace(window, GRACE),
            StreamJoined.with(Serdes.String(), STORED, STORED))
        .to(topic, Produced.with(Serdes.String(), Serdes.ByteArray()));
  }

  private static byte[] sent(String order, Row placed, Row paid) {
    return json(into -> {
      into.writeStringField("id", order);
      into.writeNumberField("sent", paid.number);
    });
  }

  private static void sessions(StreamsBuilder builder, Duration gap, String topic) {
    read(builder, "clicks", "page", null, null)
        .groupByKey(Grouped.with(Serdes.String(), STORED))
        .windowedBy(SessionWindows.ofInactivityGapAndGrace(gap, GRACE))
        .emitStrategy(EmitStrategy.onWindowClose())
        .aggregate(
            () -> new Session(0, null),
            (user, click, session) -> new Session(session.events + 1, least(session.page, click.first)),
            (user, one, other) -> new Session(one.events + other.events, least(one.page, other.page)),
            Materialized.<String, Session, SessionStore<Bytes, byte[]>>with(Serdes.String(), SESSIONS)
                .withRetention(RETENTION))
        .toStream((windowed, session) -> windowed.key())
        .filter((user, session) -> session != null)
        .mapValues((user, session) -> json(into -> {
          into.writeStringField("user_id", user);
          into.writeNumberField("events", session.events);
          into.writeStringField("page", session.page);
        }))
        .to(topic, Produced.with(Serdes.String(), Serdes.ByteArray()));
  }

  private static String least(String one, String other) {
    return one == null || other != null && other.compareTo(one) < 0 ? other : one;
  }

  private static KStream<String, Row> read(
      StreamsBuilder builder, String topic, String first, String second, String number) {
    Serde<Row> records = Serdes.serdeFrom(
        (name, row) -> { throw new UnsupportedOperationException("records are only read"); },
        (name, record) -> parsed(record, first, second, number));
    return builder.stream(topic, Consumed.with(Serdes.String(), records)
        .withTimestampExtractor((record, before) -> ((Row) record.value()).time));
  }

  private static Row parsed(byte[] record, String first, String second, String number) {
    String one = null;
    String other = null;
    double value = 0;
    long time = -1;
    try (JsonParser parser = JSON.createParser(record)) {
      parser.nextToken();
      while (parser.nextToken() != JsonToken.END_OBJECT) {
        String name = parser.currentName();
        parser.nextToken();
        if (name.equals("ts")) {
          time = parser.getLongValue();
        } else if (name.equals(first)) {
          one = parser.getText();
        } else if (name.equals(second)) {
          other = parser.getText();
        } else if (name.equals(number)) {
          value = parser.getDoubleValue();
        }
      }
    } catch (IOException problem) {
      throw new UncheckedIOException(problem);
    }
    return new Row(one, other, value, time);
  }

  private interface Fields {
    void write(JsonGenerator into) throws IOException;
  }

  private static byte[] json(Fields fields) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream(128);
    try (JsonGenerator into = JSON.createGenerator(bytes)) {
      into.writeStartObject();
      fields.write(into);
      into.writeEndObject();
    } catch (IOException problem) {
      throw new UncheckedIOException(problem);
    }
    return bytes.toByteArray();
  }

  private static final Serde<Row> STORED = Serdes.serdeFrom(
      (topic, row) -> row == null ? null : bytes(row.number, row.time, row.first, row.second),
      (topic, stored) -> {
        if (stored == null) {
          return null;
        }
        ByteBuffer from = ByteBuffer.wrap(stored);
        double number = from.getDouble();
        long time = from.getLong();
        return new Row(text(from), text(from), number, time);
      });

  private static final Serde<Session> SESSIONS = Serdes.serdeFrom(
      (topic, session) -> session == null ? null : bytes(0, session.events, session.page, null),
      (topic, stored) -> {
        if (stored == null) {
          return null;
        }
        ByteBuffer from = ByteBuffer.wrap(stored);
        from.getDouble();
        return new Session(from.getLong(), text(from));
      });

  private static byte[] bytes(double number, long time, String first, String second) {
    byte[] one = first == null ? new byte[0] : first.getBytes(StandardCharsets.UTF_8);
    byte[] other = second == null ? new byte[0] : second.getBytes(StandardCharsets.UTF_8);
    return ByteBuffer.allocate(20 + one.length + other.length)
        .putDouble(number).putLong(time)
        .putShort((short) one.length).put(one).putShort((short) other.length).put(other).array();
  }

  private static String text(ByteBuffer from) {
    byte[] text = new byte[from.getShort()];
    from.get(text);
    return new String(text, StandardCharsets.UTF_8);
  }
}
