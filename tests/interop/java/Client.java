import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's own Java clients: {@code java Client OPERATION BOOTSTRAP TOPIC ARGUMENT}, the operations of
 * {@code tests/interop/test_other_clients.py}. {@code features BOOTSTRAP} takes lines: {@code describe},
 * {@code describe next} (waits for a later epoch than the last that was printed), or {@code update} or
 * {@code validate} with {@code NAME=LEVEL:TYPE ...}; an answer is a line for each feature.
 */
public class Client {
    static Properties properties(String bootstrap) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    static BufferedReader input() {
        return new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    }

    static void produce(String bootstrap, String topic, String codec) throws Exception {
        Properties properties = properties(bootstrap);
        properties.put("compression.type", codec);
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
            List<Future<?>> sent = new ArrayList<>();
            for (String line : input().lines().collect(Collectors.toList())) {
                String[] item = line.split("\t", 2);
                sent.add(producer.send(new ProducerRecord<>(topic, item[0], item[1])));
            }
            for (Future<?> each : sent) {
                each.get();
            }
        }
    }

    static void consume(String bootstrap, String topic, int count) {
        StringDeserializer text = new StringDeserializer();
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(properties(bootstrap), text, text)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                    .map(info -> new TopicPartition(topic, info.partition())).collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (int seen = 0; seen < count; ) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(record.partition() + "\t" + record.key() + "\t" + record.value());
                    seen++;
                }
            }
        }
    }

    static long epoch(FeatureMetadata found) {
        return found.finalizedFeaturesEpoch().orElse(-1L);
    }

    /** Prints what a broker answers, and returns the epoch. An update reaches the brokers one by one, so ask again. */
    static long describe(Admin admin, long after) throws Exception {
        FeatureMetadata found = admin.describeFeatures().featureMetadata().get();
        while (epoch(found) <= after) {
            Thread.sleep(20);
            found = admin.describeFeatures().featureMetadata().get();
        }
        new TreeMap<>(found.supportedFeatures()).forEach((name, levels) -> System.out.println(
                "supported " + name + " " + levels.minVersion() + " " + levels.maxVersion()));
        new TreeMap<>(found.finalizedFeatures()).forEach((name, levels) -> System.out.println(
                "finalized " + name + " " + levels.minVersionLevel() + " " + levels.maxVersionLevel()));
        System.out.println("epoch " + epoch(found));
        return epoch(found);
    }

    static void update(Admin admin, String[] words) throws Exception {
        Map<String, FeatureUpdate> updates = new HashMap<>();
        for (int index = 1; index < words.length; index++) {
            String[] parts = words[index].split("[=:]");
            updates.put(parts[0], new FeatureUpdate(Short.parseShort(parts[1]), FeatureUpdate.UpgradeType.valueOf(parts[2])));
        }
        UpdateFeaturesOptions options = new UpdateFeaturesOptions().validateOnly(words[0].equals("validate"));
        for (Map.Entry<String, KafkaFuture<Void>> result
                : new TreeMap<>(admin.updateFeatures(updates, options).values()).entrySet()) {
            String outcome = "OK";
            try {
                result.getValue().get();
            } catch (ExecutionException error) {
                outcome = error.getCause().getClass().getSimpleName() + ": " + error.getCause().getMessage();
            }
            System.out.println(result.getKey() + " " + outcome);
        }
    }

    static void features(String bootstrap) throws Exception {
        try (Admin admin = Admin.create(properties(bootstrap))) {
            long described = -1;
            for (String line : input().lines().collect(Collectors.toList())) {
                if (line.equals("describe")) {
                    described = describe(admin, Long.MIN_VALUE);
                } else if (line.equals("describe next")) {
                    described = describe(admin, described);
                } else {
                    update(admin, line.split(" "));
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        switch (arguments[0]) {
            case "produce" -> produce(arguments[1], arguments[2], arguments[3]);
            case "consume" -> consume(arguments[1], arguments[2], Integer.parseInt(arguments[3]));
            case "features" -> features(arguments[1]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }
}
