package tamis.interop;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;

/** What an expression sees of a message: its property map, which may be missing altogether. */
final class PropertyContext implements EvaluationContext {
    private final Map<String, String> properties;

    PropertyContext(Map<String, String> properties) {
        this.properties = properties;
    }

    @Override
    public Object get(String name) {
        return properties == null ? null : properties.get(name);
    }

    @Override
    public Map<String, Object> keyValues() {
        return properties == null ? null : new HashMap<>(properties);
    }
}
