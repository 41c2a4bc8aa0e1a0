import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.Collection;
import java.util.Optional;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.connector.sink2.Sink;
import org.apache.flink.api.connector.sink2.SinkWriter;
import org.apache.flink.api.connector.sink2.WriterInitContext;
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

/**
 * Flink's SQL over a folder of Parquet files, in a cluster of two slots inside this process. Every line of standard input is
 * a query: the folder, its columns with their types, the milliseconds of the watermark, the folder for rows, that for state,
 * and statements over the view events with semicolons between them, of which the last is the query; with tabs between all
 * of these. Answers "done" when all is read, the last window has fired and all rows are written, each behind its kind.
 */
public final class Flink {
    public static void main(String[] arguments) throws Exception {
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] given = line.split("\t");
            run(given[0], given[1].split(","), given[2], given[3], given[4], given[5].split(";"));
            System.out.println("done");
        }
    }

    private static void run(
            String events, String[] columns, String watermark, String out, String state, String[] statements)
            throws Exception {
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(2, configuration(state));
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        Schema.Builder schema = Schema.newBuilder();
        for (String column : columns) {
            schema.column(name(column), type(column));
        }
        schema.watermark("t", "t - INTERVAL '" + Long.parseLong(watermark) / 1000.0 + "' SECOND");
        RowType row = (RowType) DataTypes.ROW(Stream.of(columns)
                                .map(column -> DataTypes.FIELD(name(column), type(column)))
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
        int last = statements.length - 1;
        for (int i = 0; i < last; i++) {
            tables.executeSql(statements[i]);
        }
        tables.toChangelogStream(tables.sqlQuery(statements[last])).sinkTo(new Lines(out));
        environment.execute();
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

    private static String name(String column) {
        return column.split(" ")[0];
    }

    private static DataType type(String column) {
        switch (column.split(" ")[1]) {
            case "INT":
                return DataTypes.INT();
            case "BIGINT":
                return DataTypes.BIGINT();
            case "DOUBLE":
                return DataTypes.DOUBLE();
            case "TIMESTAMP":
                return DataTypes.TIMESTAMP(3);
            default:
                return DataTypes.STRING();
        }
    }

    /** Writes rows as lines, each task to a file of its own. */
    private static final class Lines implements Sink<Row> {
        private final String folder;

        Lines(String folder) {
            this.folder = folder;
        }

        @Override
        public SinkWriter<Row> createWriter(WriterInitContext context) throws IOException {
            int task = context.getTaskInfo().getIndexOfThisSubtask();
            BufferedWriter file = Files.newBufferedWriter(java.nio.file.Path.of(folder, task + ".csv"));
            return new SinkWriter<Row>() {
                @Override
                public void write(Row told, Context when) throws IOException {
                    file.write(told.getKind().shortString());
                    for (int i = 0; i < told.getArity(); i++) {
                        file.write(",");
                        file.write(text(told.getField(i)));
                    }
                    file.write("\n");
                }

                @Override
                public void flush(boolean last) throws IOException {
                    file.flush();
                }

                @Override
                public void close() throws IOException {
                    file.close();
                }
            };
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
