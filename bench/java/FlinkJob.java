import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;

/**
 * The peer: Flink SQL in one process, until it is stopped.
 *
 * Usage: FlinkJob FILE KEY=VALUE...; FILE has the statements, the last of which is an INSERT.
 */
public final class FlinkJob {
  public static void main(String[] arguments) throws Exception {
    Configuration configuration = new Configuration();
    for (int number = 1; number < arguments.length; number++) {
      String[] pair = arguments[number].split("=", 2);
      configuration.setString(pair[0], pair[1]);
    }
    StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(configuration);
    StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
    String[] statements = Files.readString(Path.of(arguments[0])).split(";\\s*\n");
    for (int number = 0; number < statements.length - 1; number++) {
      tables.executeSql(statements[number]);
    }
    tables.executeSql(statements[statements.length - 1]).await();
  }
}
