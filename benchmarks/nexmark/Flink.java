import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.File;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Collection;
import java.util.List;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.FileSource;
import org.apache.flink.connector.file.src.FileSourceSplit;
import org.apache.flink.connector.file.src.assigners.FileSplitAssigner;
import org.apache.flink.connector.file.src.enumerate.NonSplittingRecursiveEnumerator;
import org.apache.flink.core.fs.Path;
import org.apache.flink.formats.parquet.ParquetColumnarRowInputFormat;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.DataType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Flink's SQL over a folder of Parquet files, in a cluster of two slots inside this process. Every line of standard input is
 * a query: the folder, its columns, where rows go, where state goes, and the SQL over the views person, auction and bid, with
 * tabs between them. Answers "done" when the last window has fired and all rows are written.
 */
public final class Flink {
    public static void main(String[] arguments) throws Exception {
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] given = line.split("\t");
            run(given[0], given[1].split(","), given[2], given[3], given[4]);
            System.out.println("done");
        }
    }

    private static void run(String events, String[] columns, String out, String state, String sql) throws Exception {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(2, configuration(state));
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        Schema.Builder schema = Schema.newBuilder();
        for (String column : columns) {
            schema.column(column, type(column));
        }
        schema.watermark("t", "t - INTERVAL '4' SECOND");
        RowType row = (RowType) DataTypes.ROW(
                        IntStream.range(0, columns.length)
                                .mapToObj(i -> DataTypes.FIELD(columns[i], type(columns[i])))
                                .collect(Collectors.toList()))
                .getLogicalType();
        var format = new ParquetColumnarRowInputFormat<FileSourceSplit>(
                new org.apache.hadoop.conf.Configuration(), row, InternalTypeInfo.of(row), 2048, true, true);
        var builder = FileSource.forBulkFileFormat(format, Path.fromLocalFile(new File(events)));
        builder.setFileEnumerator(NonSplittingRecursiveEnumerator::new);
        builder.setSplitAssigner(InOrder::new);
        var stream = environment.fromSource(
                builder.build(), WatermarkStrategy.noWatermarks(), "events", InternalTypeInfo.of(row));
        tables.createTemporaryView("events", stream, schema.build());
        for (String view : List.of("person", "auction", "bid")) {
            int kind = List.of("person", "auction", "bid").indexOf(view);
            tables.executeSql("CREATE TEMPORARY VIEW " + view + " AS SELECT * FROM events WHERE kind = " + kind);
        }
        try (CloseableIterator<Row> rows = tables.executeSql(sql).collect();
                BufferedWriter file = Files.newBufferedWriter(java.nio.file.Path.of(out))) {
            while (rows.hasNext()) {
                Row told = rows.next();
                for (int i = 0; i < told.getArity(); i++) {
                    file.write(i == 0 ? "" : ",");
                    file.write(text(told.getField(i)));
                }
                file.write("\n");
            }
        }
    }

    /** Times as milliseconds since the epoch. */
    private static String text(Object value) {
        return value instanceof LocalDateTime
                ? String.valueOf(((LocalDateTime) value).toInstant(ZoneOffset.UTC).toEpochMilli())
                : String.valueOf(value);
    }

    /** As the configuration of Nexmark's second runner has it, with RocksDB. */
    private static Configuration configuration(String state) {
        Configuration made = new Configuration();
        made.setString("execution.runtime-mode", "STREAMING");
        made.setString("taskmanager.numberOfTaskSlots", "2");
        made.setString("taskmanager.memory.managed.size", "1g");
        made.setString("table.local-time-zone", "UTC");
        made.setString("state.backend.type", "rocksdb");
        made.setString("execution.checkpointing.dir", "file://" + state);
        made.setString("execution.checkpointing.incremental", "true");
        made.setString("execution.checkpointing.interval", "30s");
        made.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
        made.setString("execution.checkpointing.checkpoints-after-tasks-finish", "false");
        made.setString("table.exec.mini-batch.enabled", "true");
        made.setString("table.exec.mini-batch.allow-latency", "2s");
        made.setString("table.exec.mini-batch.size", "50000");
        made.setString("table.optimizer.distinct-agg.split.enabled", "true");
        return made;
    }

    private static DataType type(String column) {
        switch (column) {
            case "kind":
                return DataTypes.INT();
            case "t":
                return DataTypes.TIMESTAMP(3);
            case "name":
            case "extra":
                return DataTypes.STRING();
            default:
                return DataTypes.BIGINT();
        }
    }

    /** Files in the order of their names, whichever reader asks: so none reads what is older than what it has read. */
    private static final class InOrder implements FileSplitAssigner {
        private final TreeMap<String, FileSourceSplit> left = new TreeMap<>();

        InOrder(Collection<FileSourceSplit> splits) {
            addSplits(splits);
        }

        @Override
        public Optional<FileSourceSplit> getNext(String host) {
            return Optional.ofNullable(left.pollFirstEntry()).map(entry -> entry.getValue());
        }

        @Override
        public void addSplits(Collection<FileSourceSplit> splits) {
            splits.forEach(split -> left.put(split.path().getPath(), split));
        }

        @Override
        public Collection<FileSourceSplit> remainingSplits() {
            return left.values();
        }
    }
}
